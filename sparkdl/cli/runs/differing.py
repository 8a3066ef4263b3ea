"""Names that tell runs apart, and what differs between them."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from sparkdl.cli.runs.found import RunSummary

_FIRST = ("module", "optimizer", "learning_rate", "loss", "batch_size", "features", "label")
_ENDINGS = (".jsonl", ".ndjson")
_RATE = re.compile(r"\blr=[^,)]+")


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
