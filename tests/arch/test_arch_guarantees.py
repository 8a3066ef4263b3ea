"""Each sentence of docs/guarantees.md names the tests that hold it, and these exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMISED, _, NOT_PROMISED = (
    (ROOT / "docs/guarantees.md").read_text().partition("\n## What is not guaranteed\n")
)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def defined_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def items(text: str) -> list[str]:
    return re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)


def test_each_promise_names_a_test() -> None:
    promises = items(PROMISED)
    assert len(promises) > 20
    assert not [promise for promise in promises if not NAMED.search(promise)]


def test_the_tests_that_are_named_exist() -> None:
    named = NAMED.findall(PROMISED + NOT_PROMISED)
    assert len(named) == (PROMISED + NOT_PROMISED).count("::") - 1, "one '::' is in the page's introduction"
    assert not [f"{path}::{test}" for path, test in named if test not in defined_in(path)]
