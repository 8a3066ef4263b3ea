"""ARCHITECTURE.md names files that are there, and uses the words of its own glossary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
HOMES = [ROOT, ROOT / "sparkdl", ROOT / "sparkdl" / "allreduce", ROOT / "sparkdl" / "train"]


def test_files_that_are_named_are_there() -> None:
    named = set(re.findall(r"(?<![\w/.])((?:\w+/)*\w+\.py)\b", TEXT))
    assert len(named) > 60
    missing = {name for name in named if not any((home / name).is_file() for home in HOMES)}
    assert not missing


@pytest.mark.parametrize("package", ["_spark", "allreduce", "compute", "train"])
def test_each_module_is_named(package: str) -> None:
    """Whoever reads it finds every module by its name."""
    folder = ROOT / "sparkdl" / package
    modules = [path for path in folder.rglob("*.py") if path.name != "__init__.py"]
    unnamed = [str(path.relative_to(folder)) for path in modules if f"{path.name}" not in TEXT]
    assert not unnamed


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
