"""Public names and pages use the words of the glossary in docs/design/words.md, one meaning each."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pyspark.ml.param import Param

from sparkdl import session
from sparkdl.allreduce.choose import Exchange
from sparkdl.train.history import BYTES, PHASES, History
from sparkdl.train.options.config import TrainConfig

ROOT = Path(__file__).parents[2]
GLOSSARY = "docs/design/words.md"

OLD = {
    "slice": "shard",
    "slices": "shards",
    "sliced": "sharded",
    "sliceable": "shardable",
    "gather": "exchange='sharded', an all-gather",
    "replicas": "exchange='replicated'",
    "stepper": "engine",
    "kept": "state",
    "news": "problem or report",
}
"""Words of earlier versions, and the word of today. A public name must not have one of them as a part."""

RENAMED = {"Drop": "DropStragglers"}
"""Whole names of earlier versions, and the name of today."""

GONE_FROM_PAGES = {
    r"\bslic(?:e|es|ed|ing)\b": "shard",
    r"\bSlice[A-Z]\w*|\b(?:num|numS|check)_?[Ss]lice\w*": "shard",
    r"""exchange=["'](?:slices|gather|replicas|rows)["']""": "sharded, replicated or driver",
    r"\b[Ss]teppers?\b": "engine",
    r"(?<![\w.])Drop\(|`Drop`": "DropStragglers",
    r"\b(?:news|leftovers?) of\b": "report, residual",
    r"\bhow far (?:it|they|a rank's|its own|their own)\b": "pseudo-gradient",
    r"\bwhat stays with\b": "the state of",
}
"""Patterns that no page has, and the word of today."""

RECORDS = {"CHANGELOG.md", "docs/performance.md", "docs/notes/performance-notes.md"}
"""Pages that name earlier versions' words: they say what was changed, and what was measured when."""

PAGES = sorted(
    {str(page.relative_to(ROOT)) for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]} - RECORDS
)

PACKAGES = (
    "sparkdl",
    "sparkdl.data",
    "sparkdl.distill",
    "sparkdl.exceptions",
    "sparkdl.metrics",
    "sparkdl.ml",
    "sparkdl.nn",
    "sparkdl.optim",
    "sparkdl.recsys",
    "sparkdl.session",
    "sparkdl.summary",
    "sparkdl.train",
    "sparkdl.tune",
)


def glossary() -> dict[str, str]:
    """Return each word with its meaning."""
    text = (ROOT / GLOSSARY).read_text()
    return dict(re.findall(r"^\| ([\w -]+) \| (.+) \|$", text, re.MULTILINE)[1:])


def words(name: str) -> set[str]:
    """Return the words of a name, of ``snake_case`` or ``camelCase``."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def own(cls: type) -> Iterator[str]:
    """Yield the public members that a class of this package has of its own, with their arguments."""
    for name, member in vars(cls).items():
        if name.startswith("_") and name != "__init__":
            continue
        yield name
        if inspect.isfunction(member):
            yield from inspect.signature(member).parameters


def exported(package: str) -> Iterator[str]:
    """Yield the public names of a package, and of what they stand for."""
    module = importlib.import_module(package)
    default = [name for name in vars(module) if not name.startswith("_")]
    for name in getattr(module, "__all__", default):
        yield name
        value = getattr(module, name)
        if inspect.isclass(value) and value.__module__.startswith("sparkdl"):
            for cls in value.__mro__:
                if cls.__module__.startswith("sparkdl"):
                    yield from own(cls)
        elif inspect.isfunction(value):
            yield from inspect.signature(value).parameters


def public_names() -> dict[str, set[str]]:
    """Return all public names, by where they are from."""
    from sparkdl import ml

    found = {package: set(exported(package)) for package in PACKAGES}
    found["options of Trainer"] = {field.name for field in dataclasses.fields(TrainConfig)}
    found["history"] = {*PHASES, *BYTES, *History().columns}
    found["exchange"] = set(get_args(Exchange))
    found["confs"] = {setting.name for setting in session.SETTINGS}
    for path in (ROOT / "sparkdl").rglob("*.py"):
        found["confs"] |= set(re.findall(r"spark\.sparkdl\.\w+", path.read_text()))
    found["Params"] = {
        name
        for estimator in (ml.TorchEstimator, ml.TorchClassifier, ml.TorchRegressor)
        for name, value in inspect.getmembers(estimator)
        if isinstance(value, Param)
    }
    return found


NAMES = public_names()


@pytest.mark.parametrize("place", NAMES)
def test_public_names_have_none_of_the_old_words(place: str) -> None:
    names = NAMES[place]
    assert names
    assert not {name: OLD[old] for name in names for old in words(name) & set(OLD)}
    assert not names & set(RENAMED)


def test_each_class_has_a_name_of_its_own() -> None:
    source = [path.read_text() for path in (ROOT / "sparkdl").rglob("*.py")]
    found = Counter(name for text in source for name in re.findall(r"^class (\w+)", text, re.M))
    twice = {name for name, count in found.items() if count > 1}
    assert twice == {"TopK"}  # a codec and a module of the zoo, both public


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_none_of_the_old_words(page: str) -> None:
    text = re.sub(r"\bF\.slice\b", "", (ROOT / page).read_text())  # a function of Spark's
    found = {new: re.findall(old, text) for old, new in GONE_FROM_PAGES.items()}
    assert not {new: there for new, there in found.items() if there}


def test_the_glossary_gives_each_word_one_line_and_one_meaning() -> None:
    found = glossary()
    assert len(found) >= 20
    for word, meaning in found.items():
        assert len(meaning) <= 130, word
        assert "elsewhere" not in meaning, word


@pytest.mark.parametrize(
    "word", ["reduce-scatter", "all-gather", "shard", "pseudo-gradient", "straggler policy", "report", "rank"]
)
def test_the_words_of_the_field_are_used_beyond_the_glossary(word: str) -> None:
    assert word in glossary()
    design = sorted(ROOT.glob("docs/design/*.md"))
    beyond = "".join(p.read_text() for p in [ROOT / "ARCHITECTURE.md", *design] if p.name != "words.md")
    pages = [page for page in PAGES if page != GLOSSARY and word in (ROOT / page).read_text()]
    assert word in beyond
    assert pages or word == "rank"
