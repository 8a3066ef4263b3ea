"""The page of outcomes."""

from __future__ import annotations

import platform
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_VERDICTS = {
    "equal": "equal",
    "rounding": "equal up to rounding",
    "refused": "refused by name",
    "different": "different",
    "not fed": "not tried",
}
_PACKAGES = ("torch", "torchvision", "transformers", "peft", "torchmetrics")

_INTRODUCTION = """# Compatibility

Modules, losses, optimizers, models and metrics that other projects list in public databases, trained by
sparkdl and by plain torch. Written on {date}, with {versions}. One command runs it again, on CPUs, without
a JVM:

```sh
python benchmarks/compatibility.py --json FILE --page docs/compatibility.md
```

Each entry trains six shuffled iterations of 22 rows in batches of different sizes, by SGD with momentum
where the entry is no optimizer.

- **Equal**: with one partition, the weights and buffers have the bits of torch. With three partitions
  they differ from torch's by less than 1e-9 (relative, in float64), or less than 1e-5 where a module
  computes in float32.
- **Equal up to rounding**: the same, but with one partition some bits differ, for the reason given.
- **Refused by name**: an error before the first iteration says what cannot be trained, and what to do.
- **Different**: trained something else without an error. Each is a fault.
- **Not tried**: torch itself does not train the entry, or the table has no input for it.

A batch of three partitions comes in shares. BatchNorm and dropout compute something else on a share than
on the whole batch, in torch as well, and so do losses that are no mean over rows, of which a warning
tells: these entries are compared with torch over the same shares. The column *over shares* counts them.
Metrics are computed over three partitions and merged, and compared with one pass over all rows.
"""


def page(kept: Mapping[str, Mapping[str, Any]], unreached: Mapping[str, Sequence[str]]) -> str:
    """Return the page of outcomes.

    Args:
        kept: the outcomes, as the runner keeps them.
        unreached: by family, names of entries that have none.
    """
    families: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for outcome in kept.values():
        families[outcome["family"]].append(outcome)
    lines = [
        _INTRODUCTION.format(date=date.today().isoformat(), versions=_versions()),
        "| | torch | entries | " + " | ".join(_VERDICTS.values()) + " | over shares |",
        "|---" * (len(_VERDICTS) + 4) + "|",
    ]
    for family, outcomes in families.items():
        lines.append(_row(family, outcomes))
    lines.append(_row("**all**", list(kept.values())))
    for verdict, title in (
        ("different", "Different"),
        ("rounding", "Equal up to rounding"),
        ("refused", "Refused"),
        ("not fed", "Not tried"),
    ):
        found = _by_reason(kept.values(), verdict)
        lines += ["", f"## {title}", ""] + (found or ["None."])
    if unreached:
        lines += ["", "## Not reached", "", "The run ended before these entries; `--go-on` adds them.", ""]
        lines += [
            f"- {family}: {', '.join(f'`{name}`' for name in names)}." for family, names in unreached.items()
        ]
    lines += ["", "## All entries", ""]
    for family, outcomes in families.items():
        lines += [f"**{family}**: {_names([outcome['name'] for outcome in outcomes])}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(name.split("[")[0] for name in names))


def _row(family: str, outcomes: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(outcome["verdict"] for outcome in outcomes)
    shared = sum(any("over shares" in note for note in outcome["notes"]) for outcome in outcomes)
    versions = ", ".join(sorted({outcome["torch"] for outcome in outcomes}))
    cells = [versions, len(outcomes), *(counts[verdict] for verdict in _VERDICTS), shared]
    return f"| {family} | " + " | ".join(map(str, cells)) + " |"


def _by_reason(outcomes: Any, verdict: str) -> list[str]:
    """Return a line for each reason, with the entries that have it."""
    reasons: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for outcome in outcomes:
        if outcome["verdict"] == verdict:
            reason = outcome["reason"].split(" [docs/")[0].replace("|", "\\|")
            reasons[outcome["family"], reason].append(outcome["name"])
    return [
        f"- {family}: {', '.join(f'`{name}`' for name in names)}: {reason}"
        for (family, reason), names in reasons.items()
    ]


def _versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
