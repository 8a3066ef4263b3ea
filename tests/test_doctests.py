"""The examples in docstrings say what happens."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [path for path in sorted(ROOT.glob("sparkdl/**/*.py")) if ">>>" in path.read_text()]


def module_name(path: Path) -> str:
    """Return the name by which a file of the package is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_examples_in_docstrings(path: Path) -> None:
    failed, tried = doctest.testmod(import_module(module_name(path)))
    assert tried
    assert not failed


def test_there_are_examples() -> None:
    assert len(FILES) >= 8
