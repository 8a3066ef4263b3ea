"""Tokenisers of others: refused by name, whatever their files hold."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sparkdl.exceptions import ConfigError
from sparkdl.hf import tokens

tokenizers = pytest.importorskip("tokenizers")


class PanicException(BaseException):
    pass


def use(folder: Path) -> dict[str, list[int]]:
    found = tokens.given(folder)
    encoding = tokens.TokenEncoding(found.text, found.inputs, 4, found.pad_token, found.padding_side)
    return encoding.tokens("ab")


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ([], {}, "tokenizer.json is no JSON object but a list"),
        ({}, [], "tokenizer_config.json is no JSON object but a list"),
        ({}, {"pad_token": "[NONE]"}, r"has no padding token '\[NONE\]'"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}, {}, "no tokenizer.json"),
        ({"added_tokens": 3}, {}, "no tokenizer.json"),
    ],
)
def test_a_hostile_tokenizer_is_refused(tmp_path: Path, change: Any, settings: Any, message: str) -> None:
    own = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, [])).to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(own))
    assert use(tmp_path)["input_ids"] == [0, 1]
    (tmp_path / "tokenizer.json").write_text(json.dumps(change if isinstance(change, list) else own | change))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=message):
        use(tmp_path)


def test_a_panic_of_the_library_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no ``Exception``, and would pass all handlers."""

    def panic(text: str) -> None:
        raise PanicException("no entry found for key")

    library = SimpleNamespace(Tokenizer=SimpleNamespace(from_str=panic))
    monkeypatch.setattr(tokens, "need", lambda *_: library)
    with pytest.raises(ConfigError, match=r"no tokenizer.json: no entry found"):
        tokens.check("{}")


def test_a_tokenizer_json_says_where_texts_are_filled_up_and_cut_off(tmp_path: Path) -> None:
    """The expected numbers are those of the library, and of transformers in a folder without settings."""
    plain = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "<pad>": 2}, []))
    plain.enable_truncation(3, direction="left")
    plain.enable_padding(direction="left", length=3, pad_id=2, pad_token="<pad>")
    plain.save(str(tmp_path / "tokenizer.json"))
    for given in (plain, tmp_path, tmp_path / "tokenizer.json"):
        found = tokens.given(given)
        assert found.max_length == (3 if given is plain else None)
        sides = (found.padding_side, found.truncation_side)
        encoding = tokens.TokenEncoding(found.text, found.inputs, 3, found.pad_token, *sides)
        for text in ("a", "aaab"):
            assert encoding.tokens(text)["input_ids"] == plain.encode(text).ids
    (tmp_path / "tokenizer_config.json").write_text('{"padding_side": "right"}')
    assert tokens.given(tmp_path).padding_side == "right"


@pytest.mark.parametrize("kind", ["WordPiece", "BPE"])
@pytest.mark.parametrize("settings", [(), ("",), ("", "_for_bpe_even_though_it_will_corrupt_output")])
def test_texts_are_cleaned_up_as_by_transformers(kind: str, settings: Any, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    words = ["[UNK]", "it", "is", "n't", "so", ".", ",", "'", "we", "'re", "'s", "fine"]
    words += ["!", "?", "'ve", "'m"]
    numbers = {word: n for n, word in enumerate(words)}
    if kind == "BPE":
        own = tokenizers.Tokenizer(tokenizers.models.BPE(numbers, []))
    else:
        own = tokenizers.Tokenizer(tokenizers.models.WordPiece(numbers, unk_token="[UNK]"))
        own.decoder = tokenizers.decoders.WordPiece(cleanup=False)
    cleaning = {f"clean_up_tokenization_spaces{name}": True for name in settings}
    fast = PreTrainedTokenizerFast(tokenizer_object=own, **cleaning)
    fast.save_pretrained(tmp_path)
    rows = [[1, 2, 3, 4, 5], [8, 9, 11, 12, 13], [4, 7, 8, 7, 11, 6, 14, 15, 10], [], list(range(16))]
    expected = fast.batch_decode(rows)
    assert (" ." in expected[0]) is not (bool(settings) and (kind != "BPE" or len(settings) > 1))
    for given in (fast, tmp_path):
        found = tokens.given(given)
        (texts,) = tokens.Decoding(found.text, clean_up=found.clean_up)(iter([pa.array(rows)]))
        assert texts.to_pylist() == expected
