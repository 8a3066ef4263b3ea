"""The runs of a folder as one page: list, curves, settings, two runs side by side. It loads nothing.

Files of runs may hold anything. Their texts are escaped in HTML, and are data for the page's one script,
which puts them in as text. The page's policy (CSP) runs no other script and opens no connection.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any

from sparkdl import html
from sparkdl.cli.document import document
from sparkdl.cli.runs.found import Course, RunSummary

_POINTS = 400
_SETTINGS = 5  # settings in the list at most: more make it wider than a screen
_SHORT = 24
_MINUTE = len("2026-01-31 12:00")
_ALWAYS_SHOWN = ("started", "loss", "best score")  # facts in the list even where all runs have the same
_FIRST = ("module", "optimizer", "learning_rate", "loss", "batch_size", "features", "label")
_ENDINGS = (".jsonl", ".ndjson")
_RATE = re.compile(r"\blr=[^,)]+")
_SMALL = (140, 30)
_LARGE = (480, 96)
_SCRIPT = Path(__file__).with_name("page.js")

_BODY = Template("""\
<div id="runs" class="wide">$runs</div>
$same
<section id="compare" hidden>
<h2>Compare</h2>
<div class="choose">
<label><span class="swatch"></span>A <select id="first"></select></label>
<label><span class="swatch b"></span>B <select id="second"><option value="">none</option></select></label>
</div>
<div id="curves"></div>
<h2>Settings</h2><div id="settings" class="wide"></div>
<h2>Results</h2><div id="facts" class="wide"></div>
</section>
<h2>Each run</h2>
$details
<script type="application/json" id="data">$data</script>
<script>$script</script>
""")


def page(found: Sequence[RunSummary], folder: str) -> str:
    """Return the page of some runs, the last of which it shows first."""
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    one = len(found) == 1
    script = _SCRIPT.read_text(encoding="utf-8")
    names = names_of(found)
    listed, same = _list(found, names)
    body = _BODY.substitute(
        script=script,
        runs=listed,
        same=same,
        details="\n".join(map(_details, found, names)),
        data=_json([_data(run, name) for run, name in zip(found, names, strict=True)]),
    )
    remark = f"{len(found)} run{'' if one else 's'}, {made}"
    return document(f"Runs in {folder}", remark, body, script)


def facts(run: RunSummary) -> dict[str, str]:
    """Return what a run came to, as text by name."""
    course = run.course or Course()
    best = "-" if run.best_score is None else f"{run.best_score:.4g}"
    return {
        "name": run.name or "-",
        "started": (run.started or "-").removesuffix("+00:00").replace("T", " "),
        "state": run.state,
        "ended by": run.reason or "-",
        "iterations": str(run.iterations),
        "epochs": str(run.epochs),
        "seconds": f"{course.seconds:.1f}" if course.seconds else "-",
        "loss": "-" if run.loss is None else f"{run.loss:.4g}",
        "best score": f"{best} ({run.monitored})" if run.monitored and run.best_score is not None else best,
        "attempt": "-" if run.attempt is None else str(run.attempt),
        "path": run.path,
    }


def _list(found: Sequence[RunSummary], names: Sequence[str]) -> tuple[str, str]:
    """Return the list: names, what differs, what runs came to; and what all of them have in common."""
    told, settings = [facts(run) for run in found], [_settings(run) for run in found]
    chosen = differing(settings)
    left_out = () if any(run.attempt for run in found) else ("attempt",)
    columns = [name for name in told[0] if name not in (*left_out, "path")] if told else []
    same = shared(told, [name for name in columns if name not in _ALWAYS_SHOWN])
    columns = [name for name in columns if name not in same]
    rows = []
    for run, name, fact, setting in zip(found, names, told, settings, strict=True):
        curve = [y for _, y in sorted(_series(run).get("loss", {}).items())]
        line = html.sparkline(curve, f"loss of {name}", _SMALL)
        own = [setting.get(each, "-") for each in chosen[:_SETTINGS]]
        fact["started"] = fact["started"][:_MINUTE]
        rows.append([*map(_cell, [name, *own, *(fact[each] for each in columns)]), line])
    head = ["run", *(each.replace("_", " ") for each in chosen[:_SETTINGS]), *columns, "course of the loss"]
    said = [f"In all runs: {', '.join(f'{n} {v}' for n, v in same.items())}."] if same else []
    if more := chosen[_SETTINGS:]:
        said.append(f"They also differ in {', '.join(more)}: see below.")
    return html.table(head, rows), f"<p>{html.text(' '.join(said))}</p>" if said else ""


def _cell(value: str) -> html.Raw:
    """Return a value that a table breaks into lines only if it is long."""
    kind = "whole" if len(value) <= _SHORT else "long"
    return html.Raw(f"<span class='{kind}'>{html.text(value)}</span>")


def _details(run: RunSummary, name: str) -> str:
    """Return a run by itself, for readers without JavaScript."""
    rows = []
    for series, values in _series(run).items():
        line = [y for _, y in sorted(values.items())]
        rows.append((series, f"{line[0]:.4g}", f"{line[-1]:.4g}", html.sparkline(line, series, _LARGE)))
    curves = html.table(["", "first", "last", "course"], rows) if rows else ""
    settings = _settings(run)
    told = html.table(["setting", "value"], sorted(settings.items())) if settings else ""
    title = html.text(f"{name}: {run.name or '-'}, {run.path}")
    return f"<details><summary>{title}</summary><div class='wide'>{curves}{told}</div></details>"


def _data(run: RunSummary, name: str) -> dict[str, Any]:
    return {
        "run": name,
        "facts": facts(run),
        "settings": _settings(run),
        "series": {name: _points(values) for name, values in _series(run).items()},
    }


def _settings(run: RunSummary) -> Mapping[str, str]:
    return run.course.settings if run.course is not None else {}


def _series(run: RunSummary) -> Mapping[str, Mapping[int, float]]:
    return run.course.series if run.course is not None else {}


def _points(values: Mapping[int, float]) -> list[tuple[int, float]]:
    """Return iterations and values, at most some hundred."""
    iterations = sorted(values)
    line = html.thinned([values[n] for n in iterations], _POINTS)
    # The last point stays as it is: it is the one that is told in numbers.
    points = [(iterations[round(place)], value) for place, value in line]
    last = iterations[-1]
    return [*(point for point in points if point[0] != last), (last, values[last])]


def _json(value: Any) -> str:
    """Return JSON in which no HTML begins or ends."""
    told = json.dumps(value, allow_nan=False)
    return told.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def names_of(found: Sequence[RunSummary]) -> list[str]:
    """Return a name for each run: its folder, with its file where the folder has several.

    Of several runs in one file, the later ones have a number.
    """
    files = {run.path for run in found if run.path.endswith(_ENDINGS)}
    folders = Counter(posixpath.dirname(path) for path in files)
    names, seen = [], Counter[str]()
    for run in found:
        home, is_file = posixpath.dirname(run.path), run.path in files
        path = home if is_file and home and folders[home] == 1 else posixpath.splitext(run.path)[0]
        name = path if is_file else run.path
        seen[run.path] += 1
        names.append(f"{name} ({seen[run.path]})" if seen[run.path] > 1 else name)
    return names


def differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the settings in which runs differ, those that matter most first.

    An optimizer that differs by its learning rate alone is told by that. Runs without settings do not count.
    """
    known = [each for each in settings if each]
    names = dict.fromkeys(name for each in known for name in each)
    found = [name for name in names if len({each.get(name) for each in known}) > 1]
    if "learning_rate" in found and len({_RATE.sub("", each.get("optimizer", "")) for each in known}) == 1:
        found = [name for name in found if name != "optimizer"]
    return sorted(found, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))


def shared(facts: Sequence[Mapping[str, str]], names: Sequence[str]) -> dict[str, str]:
    """Return which of these facts all runs have in common; none of a single run."""
    if len(facts) < 2:
        return {}
    return {name: facts[0][name] for name in names if len({each[name] for each in facts}) == 1}
