"""ARCHITECTURE.md names files that are there, and uses the words of its own glossary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
HOMES = [ROOT, ROOT / "sparkdl"]
"""Where paths begin, as the page says: there is one way to write each."""


def test_files_that_are_named_are_there() -> None:
    named = set(re.findall(r"(?<![\w/.])((?:\w+/)*\w+\.py)\b", TEXT))
    assert len(named) > 60
    missing = {name for name in named if not any((home / name).is_file() for home in HOMES)}
    assert not missing


@pytest.mark.parametrize(
    "package",
    ["_spark", "access", "allreduce", "auto", "cli", "compute", "distill", "series", "train", "tune"],
)
def test_each_module_is_named(package: str) -> None:
    """Whoever reads it finds every module, with a few words on it, in the table of files."""
    table = TEXT[TEXT.index("## Files") : TEXT.index("## Layers")]
    home = ROOT / "sparkdl"
    modules = [path for path in (home / package).rglob("*.py") if path.name != "__init__.py"]
    unnamed = [path for path in (str(m.relative_to(home)) for m in modules) if f"`{path}`" not in table]
    assert not unnamed


def test_pages_that_are_named_are_there() -> None:
    named = set(re.findall(r"`((?:docs|tests|scripts|conf|benchmarks)/[\w/.]*)`", TEXT))
    assert named
    assert not {name for name in named if not (ROOT / name).exists()}


def test_no_line_is_longer_than_the_page_is_wide() -> None:
    assert not [line for line in TEXT.splitlines() if len(line) > 125]


def test_the_glossary_has_its_words_once() -> None:
    glossary = TEXT[TEXT.index("## Words") : TEXT.index("## Decisions")]
    words = re.findall(r"^\| ([\w -]+) \|", glossary, re.MULTILINE)[1:]
    assert len(words) >= 20
    assert len(set(words)) == len(words)
    for word in (
        "rank",
        "reduce-scatter",
        "all-gather",
        "shard",
        "pseudo-gradient",
        "straggler policy",
        "report",
    ):
        assert word in words


def test_words_that_have_gone_are_not_used_in_the_engine() -> None:
    gone = re.compile(r"\b(Stepper|ReplicaStepper|GatherStepper|RowStepper|parameter_sync)\b")
    for path in (ROOT / "sparkdl").rglob("*.py"):
        assert not gone.search(path.read_text()), path
    assert not gone.search(TEXT)
