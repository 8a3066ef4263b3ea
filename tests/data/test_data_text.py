"""Tokens and their numbers, row functions and column metadata, without Spark."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from sparkdl.data.columns import Column, described, tensor_metadata
from sparkdl.data.text import TextIndex, tokenize
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml.stages.rowwise import Rowwise

WORDS = ("<pad>", "<unk>", "the", "cat", "sat")


@pytest.mark.parametrize(
    ("text", "options", "tokens"),
    [
        ("The cat, the CAT.", {}, ["the", "cat", "the", "cat"]),
        ("The Cat", {"lowercase": False}, ["The", "Cat"]),
        ("a-b  c!", {"pattern": r"\S+"}, ["a-b", "c!"]),
        ("don't", {"pattern": r"\w+('\w+)?"}, ["don't"]),
        ("Ærø в 2024", {}, ["ærø", "в", "2024"]),
        ("", {}, []),
        (" ,.! ", {}, []),
    ],
)
def test_tokens(text: str, options: dict[str, Any], tokens: list[str]) -> None:
    assert tokenize(text, **options) == tokens


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("the cat sat", [2, 3, 4, 0]),
        ("the dog sat", [2, 1, 4, 0]),
        ("the cat sat the dog", [2, 3, 4, 2]),
        ("", [0, 0, 0, 0]),
        (["cat", None, "Cat"], [3, 1, 1, 0]),
        ([], [0, 0, 0, 0]),
        (["<pad>", "<unk>"], [0, 1, 0, 0]),
    ],
)
def test_numbers(text: Any, numbers: list[int]) -> None:
    assert TextIndex(WORDS, 4)(text) == numbers


def test_padding_and_truncation_at_the_start() -> None:
    index = TextIndex(WORDS, 3, padding="start", truncation="start")
    assert index("cat") == [0, 0, 3]
    assert index("the dog cat sat") == [1, 3, 4]
    assert index("") == [0, 0, 0]


def test_a_text_that_holds_the_name_of_padding_has_an_unknown_word_there() -> None:
    index = TextIndex(WORDS, 5, pattern=r"\S+")
    assert index("the <pad> cat <unk>") == [2, 1, 3, 1, 0]


def test_an_index_travels_without_its_table() -> None:
    index = TextIndex(list(WORDS), 3)  # type: ignore[arg-type]
    before = pickle.dumps(index)
    index("cat")
    assert pickle.dumps(index) == before
    again = pickle.loads(before)
    assert again == index
    assert again("cat") == [3, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocabulary": ("<pad>",)}, "vocabulary of 1 tokens, 1 of them different"),
        ({"vocabulary": ("a", "b", "a")}, "vocabulary of 3 tokens, 2 of them different"),
        ({"length": 0}, "length=0: expected a positive"),
        ({"pattern": "(a"}, r"pattern='\(a' is not a regular expression: missing \)"),
        ({"pattern": r"\w*"}, "matches empty text"),
        ({"padding": "left"}, "padding='left': expected 'start' or 'end'"),
        ({"truncation": "left"}, "truncation='left': expected 'start' or 'end'"),
    ],
)
def test_an_index_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TextIndex(**{"vocabulary": WORDS, "length": 3} | arguments)


def test_only_texts_and_tokens_have_numbers() -> None:
    with pytest.raises(DataError, match="expected a text or its tokens, got int"):
        TextIndex(WORDS, 3)(5)  # type: ignore[arg-type]


# -- row functions ------------------------------------------------------------------------------


def halve(number: int) -> int:
    if number % 2:
        raise DataError(f"{number} is odd")
    return number // 2


def test_a_row_function_names_the_row() -> None:
    call = Rowwise(halve, "n", lenient=False)
    assert call(None, 4) == 2
    with pytest.raises(DataError, match=r"column 'n', row 1 of partition 0: 5 is odd; handleInvalid='skip'"):
        call(None, 5)
    with pytest.raises(DataError, match="column 'n', file:/a.png: null"):
        call("file:/a.png", None)


def test_a_lenient_row_function_gives_null_for_bad_rows_alone() -> None:
    call = Rowwise(halve, "n", lenient=True)
    assert [call(None, value) for value in (4, 5, None)] == [2, None, None]
    with pytest.raises(TypeError):
        call(None, "x")  # a mistake of the program, not a bad row


def test_arrays_become_bytes() -> None:
    assert Rowwise(np.asarray, "n", lenient=False)(None, [1.0]) == np.ones(1).tobytes()


# -- metadata -----------------------------------------------------------------------------------


def test_metadata_fill_in_what_a_column_leaves_open() -> None:
    metadata = tensor_metadata((3, 4), "uint8")
    assert described(Column("x"), metadata)[0] == Column("x", (3, 4), "uint8")
    assert described(Column("x", (12,)), metadata)[0] == Column("x", (12,), "uint8")
    assert described(Column("x", dtype="int8"), metadata)[0] == Column("x", (3, 4), "int8")
    assert described(Column("x"), {})[0] == Column("x")
    assert described(Column("x"), {"sparkdl": "something else", "ml_attr": {}})[0] == Column("x")
    assert described(Column("x"), tensor_metadata((), "int64"))[0] == Column("x", (), "int64")


def test_wrong_metadata_are_an_error() -> None:
    with pytest.raises(ConfigError, match="column 'x': dtype 'text'"):
        described(Column("x"), {"sparkdl": {"shape": [2], "dtype": "text"}})
