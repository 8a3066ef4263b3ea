"""``sparkdl profile script.py``: where the time of a step goes, as a page and a trace."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from sparkdl import html
from sparkdl.cli import rehearse
from sparkdl.cli.document import document, write

_EXAMPLES = """\
examples:
  sparkdl profile train.py
  sparkdl profile --html profile.html --trace trace.json train.py --batch 64
  sparkdl profile --master 'local[2]' --json train.py

Runs the script as far as its first fit, which trains for some seconds on a sample instead, and then ends the
script. The trace opens at https://ui.perfetto.dev: driver, tasks of each host, and the layers of one step.
"""
_BAR = (200, 12)
_LAYERS = 30
_ADVICE = 1000
_LAYER = ("layer", "kind", "parameters", "forward ms", "backward ms", "of all layers")
_MEANS = {
    "rows": "rows of the step, from the partition store to tensors",
    "forward and backward": "the module and the loss, mean of all ranks",
    "weights and gradient": "weights into the module, its gradient into a message",
    "update": "the optimizer",
    "waiting for the slowest rank": "how much longer than the mean the slowest one works",
    "exchange": "messages between the ranks",
    "scheduling": "the step's share of a Spark job",
}
"""What the parts of a step are, for readers of the page."""
_FACTS = {
    "batch_size": "batch_size",
    "ranks": "ranks",
    "threads": "torch threads of a rank",
    "exchange": "exchange",
    "transport": "transport",
    "steps_per_job": "steps of a Spark job",
    "python_bytes": "memory of an executor's Python processes",
    "jvm_bytes": "memory of an executor's JVM",
}

_BODY = Template("""\
<h2>A step</h2><div class="wide parts">$parts</div>
<h2>What to change</h2><div class="wide">$advice</div>
<h2>Layers</h2><div class="wide">$layers</div>
<h2>Measured with</h2><div class="wide">$facts</div>
""")


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "profile",
        help="take a step of a script apart: layers, exchange, scheduling, waiting",
        description="Say where the time of a training step goes, and what to change.",
        usage="sparkdl profile [options] script.py [arguments]",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for Perfetto")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    rehearse.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Rehearse, print where time goes, and write page and trace."""
    trace = str(args.trace.resolve()) if args.trace is not None else ""
    status, found = rehearse.answer_of(args, kind="profile", trace=trace)
    if status:
        return status
    print(json.dumps(found) if args.json else shown(found))
    if args.html is not None:
        write("--html", args.html, page(found))
    for path in (args.html, args.trace):
        if path is not None:
            print(f"wrote {path}", file=sys.stderr)
    return 0


def shown(found: Mapping[str, Any]) -> str:
    """Return a profile as text."""
    step = found["facts"]["step"] or 1.0
    lines = [f"{found['name']}: a step takes {1e3 * step:.4g} ms"]
    lines.append(f"  {'ms':>9}  share  part")
    lines += [f"  {1e3 * s:9.4g}  {s / step:5.1%}  {name}" for name, s in _parts(found)]
    if found["layers"]:
        lines.append(f"  {'forward':>9} {'backward':>9}  layer (ms)")
    for layer in found["layers"][:10]:
        times = f"{1e3 * layer['forward']:9.4g} {1e3 * layer['backward']:9.4g}"
        lines.append(f"  {times}  {layer['name']} ({layer['kind'] or '-'})")
    lines.append(f"bottleneck: {found['bottleneck']}")
    return "\n".join([*lines, *(f"- {text}" for text in found["advice"])])


def page(found: Mapping[str, Any]) -> str:
    """Return a profile as a page, which loads nothing and runs nothing."""
    step = found["facts"]["step"] or 1.0
    parts = [
        (name, f"{1e3 * s:.4g}", f"{s / step:.1%}", _bar(s / step), _MEANS.get(name, ""))
        for name, s in _parts(found)
    ]
    share = f"{found['parts'][found['bottleneck']] / step:.0%}"
    whole = sum(layer["forward"] + layer["backward"] for layer in found["layers"]) or 1.0
    layers = [
        (
            layer["name"],
            layer["kind"],
            f"{layer['parameters']:,}",
            f"{1e3 * layer['forward']:.4g}",
            f"{1e3 * layer['backward']:.4g}",
            _bar((layer["forward"] + layer["backward"]) / whole),
        )
        for layer in found["layers"][:_LAYERS]
    ]
    body = _BODY.substitute(
        parts=html.table(["part", "ms", "share", "of the step", "what it is"], parts),
        advice=_list(found["advice"]),
        layers=html.table(_LAYER, layers),
        facts=html.table(
            ["setting", "value"],
            [(told, _fact(found, name)) for name, told in _FACTS.items() if name in found["facts"]],
        ),
    )
    remark = f"{1e3 * step:.4g} ms; the largest part is {found['bottleneck']}, {share}"
    return document(f"A step of {found['name']}", remark, body)


def _list(advice: Sequence[str]) -> str:
    lines = "".join(f"<li>{html.text(text, _ADVICE)}</li>" for text in advice)
    return f"<ol>{lines}</ol>" if lines else "<p>Nothing takes so much of a step that a change would pay.</p>"


def _parts(found: Mapping[str, Any]) -> list[tuple[str, float]]:
    return sorted(found["parts"].items(), key=lambda part: -part[1])


def _fact(found: Mapping[str, Any], name: str) -> str:
    value = found["facts"][name]
    return html.amount(value) if name.endswith("_bytes") else str(value)


def _bar(share: float) -> html.Raw:
    width, height = _BAR
    long = round(width * min(max(share, 0.0), 1.0))
    return html.Raw(
        f'<svg role="img" aria-label="{share:.0%}" width="{width}" height="{height}" '
        f'xmlns="http://www.w3.org/2000/svg"><rect width="{long}" height="{height}" fill="#1f5fa8"/></svg>'
    )
