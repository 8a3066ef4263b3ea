"""Draw what peers.py has measured: ``python benchmarks/plot.py peers.json peers.png``.

Several files are drawn as one, for peers that a program of their own measures, such as BigDL: a JSON list of
objects with ``work``, ``mode`` and ``ms_per_iteration``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

_COLOURS = {"torch": "tab:gray", "ddp": "tab:gray", "bigdl": "tab:gray", "bare": "lightgray"}
_ORDER = ("bigdl", "torch", "ddp", "bare")


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


def _place(row: dict[str, Any]) -> int:
    """Return where a mode stands: peers first, then as measured."""
    return _ORDER.index(row["mode"]) if row["mode"] in _ORDER else len(_ORDER)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw what peers.py has measured.")
    parser.add_argument("rows", nargs="+", help="files that peers.py has written with --json")
    parser.add_argument("picture", help="file to write, such as peers.png or peers.svg")
    args = parser.parse_args()
    draw([row for file in args.rows for row in json.loads(Path(file).read_text())], args.picture)


if __name__ == "__main__":
    main()
