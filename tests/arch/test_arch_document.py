"""ARCHITECTURE.md and docs/design name files that are there, and the table of files is current."""

from __future__ import annotations

import re
from pathlib import Path

import files_page

ROOT = Path(__file__).parents[2]
MAP = (ROOT / "ARCHITECTURE.md").read_text()
TEXT = "\n".join(
    [MAP, *(page.read_text() for page in sorted((ROOT / "docs/design").glob("*.md")) if page.stem != "files")]
)
HOMES = [ROOT, ROOT / "sparkdl"]
"""Where paths begin, as the page says: there is one way to write each."""


def test_files_that_are_named_are_there() -> None:
    named = set(re.findall(r"(?<![\w/.])((?:\w+/)*\w+\.py)\b", TEXT))
    assert len(named) > 60
    missing = {name for name in named if not any((home / name).is_file() for home in HOMES)}
    assert not missing


def test_the_table_of_files_is_current() -> None:
    assert files_page.PAGE.read_text() == files_page.page(), "run python scripts/files_page.py"


def test_the_map_is_one_page() -> None:
    assert len(MAP.encode()) <= 25_600
    assert len((ROOT / "README.md").read_bytes()) <= 8_192


def test_pages_that_are_named_are_there() -> None:
    named = set(re.findall(r"`((?:docs|tests|scripts|conf|benchmarks)/[\w/.]*)`", TEXT))
    assert named
    assert not {name for name in named if not (ROOT / name).exists()}


def test_no_line_is_longer_than_the_page_is_wide() -> None:
    assert not [line for line in TEXT.splitlines() if len(line) > 125 and not line.startswith("|")]


def test_the_glossary_has_its_words_once() -> None:
    glossary = (ROOT / "docs/design/words.md").read_text()
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
