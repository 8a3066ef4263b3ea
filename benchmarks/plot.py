"""Draw what peers.py has measured: ``python benchmarks/plot.py peers.json peers.svg``.

Several files are drawn as one, for peers that a program of their own measures, such as BigDL: a JSON list of
objects with ``work``, ``mode`` and ``ms_per_iteration``. A picture with the ending ``.svg`` is that of the
documentation: a group of bars per work for BigDL, DDP and what ``exchange="auto"`` takes (mode ``auto``),
each work on a scale of its own, in colours that follow the reader's light or dark mode. Any other ending
gives all modes, by matplotlib.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

_COLOURS = {"torch": "tab:gray", "ddp": "tab:gray", "bigdl": "tab:gray", "bare": "lightgray"}
_ORDER = ("bigdl", "torch", "ddp", "bare")
_SHOWN = {"bigdl": "BigDL", "ddp": "PyTorch DDP", "auto": "sparkdl"}
_TITLES = {
    "empty": ("Linear, 11 weights", "batch 2, SGD"),
    "mlp": ("MLP 784-512-512-10", "batch 128, SGD"),
    "lenet": ("LeNet-5", "batch 512, SGD"),
    "ncf-2048": ("NeuralCF, 1.27 M", "batch 2,048, Adam"),
    "ncf-16384": ("NeuralCF, 1.27 M", "batch 16,384, Adam"),
    "resnet20": ("ResNet-20, 32 x 32", "batch 256, momentum"),
}
_STYLE = """  <style>
    text { fill: #1f2733; } .faint { fill: #5b6472; } .peer { fill: #b4bcc9; } .own { fill: #3f51b5; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e4e7ee; } .faint { fill: #aab2c0; } .peer { fill: #6b7382; } .own { fill: #8c9eff; }
    }
  </style>"""
_BAR, _GAP, _GROUP = 17, 3, 20  # heights
_LEFT, _WIDE, _WIDTH = 190, 330, 720


def draw(rows: list[dict[str, Any]], target: str) -> None:
    """Draw milliseconds per iteration, a panel per work and a bar per mode."""
    from matplotlib.figure import Figure

    works = list(dict.fromkeys(row["work"] for row in rows))
    figure = Figure(figsize=(3.2 * min(len(works), 3), 2.4 * -(-len(works) // 3)), layout="constrained")
    panels = figure.subplots(-(-len(works) // 3), min(len(works), 3), squeeze=False).flat
    for work, panel in zip(works, panels, strict=False):
        own = sorted((row for row in rows if row["work"] == work), key=_place)
        colours = [_COLOURS.get(row["mode"].partition(" ")[0], "tab:blue") for row in own]
        bars = panel.barh(
            [row["mode"] for row in own], [row["ms_per_iteration"] for row in own], color=colours
        )
        panel.bar_label(bars, fmt="%.3g", padding=2)
        panel.invert_yaxis()
        panel.margins(x=0.25)
        panel.set_title(work)
        panel.set_xlabel("ms per iteration")
    for panel in list(panels):
        panel.set_visible(False)
    figure.savefig(target, dpi=120)


def svg(rows: list[dict[str, Any]]) -> str:
    """Return the picture of the documentation: a group of bars per work on its own scale."""
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["mode"] in _SHOWN:
            groups.setdefault(row["work"], {})[row["mode"]] = row["ms_per_iteration"]
    lines: list[str] = []
    y = 6
    for work, times in groups.items():
        lines += _group(work, times, y)
        y += len(times) * (_BAR + _GAP) + _GROUP
    what = "Milliseconds per step with BigDL, PyTorch's DDP and sparkdl"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y - _GROUP + 8}" '
            'font-family="system-ui, sans-serif" font-size="14" role="img" aria-labelledby="title">',
            f'  <title id="title">{what}</title>',
            _STYLE,
            *lines,
            "</svg>\n",
        ]
    )


def _group(work: str, times: dict[str, float], y: int) -> Iterator[str]:
    """Yield the elements of a work's group, from y downwards."""
    for number, text in enumerate(_TITLES.get(work, (work,))):
        style = ' class="faint" font-size="12.5"' if number else ' font-weight="600"'
        yield f'  <text x="0" y="{y + 14 + 18 * number}"{style}>{escape(text)}</text>'
    for mode in (mode for mode in _SHOWN if mode in times):
        width = max(2.0, _WIDE * times[mode] / max(times.values()))
        colour, weight = ("own", ' font-weight="600"') if mode == "auto" else ("peer", "")
        yield f'  <rect class="{colour}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2"/>'
        text = f"{times[mode]:.3g} ms  {_SHOWN[mode]}"
        yield f'  <text x="{_LEFT + width + 7:.1f}" y="{y + 13}" font-size="13"{weight}>{text}</text>'
        y += _BAR + _GAP


def _place(row: dict[str, Any]) -> int:
    """Return where a mode stands: peers first, then as measured."""
    return _ORDER.index(row["mode"]) if row["mode"] in _ORDER else len(_ORDER)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw what peers.py has measured.")
    parser.add_argument("rows", nargs="+", help="files that peers.py has written with --json")
    parser.add_argument("picture", help="file to write, such as peers.svg or peers.png")
    args = parser.parse_args()
    rows = [row for file in args.rows for row in json.loads(Path(file).read_text())]
    if args.picture.endswith(".svg"):
        Path(args.picture).write_text(svg(rows))
    else:
        draw(rows, args.picture)


if __name__ == "__main__":
    main()
