"""Module docstrings begin with a noun phrase or a sentence; internal names shed words of several meanings."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "sparkdl"

QUESTIONS = re.compile(r"(?:What|Which|Who|Whose|How|Whether|Where|Why|When)\b")

BANNED = {
    "kept": 130,
    "told": 89,
    "circle": 0,
    "settle": 27,
    "settled": 13,
    "owed": 6,
    "sound": 11,
    "homes": 21,
    "whose": 12,
    "ours": 17,
}
"""Words with several meanings, and in how many names of the package each still is. They only shrink."""


def test_a_module_docstring_does_not_begin_with_a_question() -> None:
    first = {path: docstring(path) for path in PACKAGE.rglob("*.py")}
    assert len(first) > 400
    assert not {str(path): text for path, text in first.items() if QUESTIONS.match(text)}


def docstring(path: Path) -> str:
    """Return a module's docstring; what comes after it is not looked at."""
    skipped = (tokenize.COMMENT, tokenize.NL)
    with path.open() as file:
        first = next(token for token in tokenize.generate_tokens(file.readline) if token.type not in skipped)
    return str(ast.literal_eval(first.string)).strip() if first.type == tokenize.STRING else ""


@cache
def internal_words() -> Counter[str]:
    """Return how often each word is a part of a name in the package."""
    found: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.NAME:
                found.update(
                    {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", token.string)}
                )
    return found


@pytest.mark.parametrize("word", BANNED)
def test_banned_words_only_shrink(word: str) -> None:
    assert internal_words()[word] <= BANNED[word]
