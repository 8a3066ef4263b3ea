"""Texts to token numbers and back, with a fast tokeniser, as what runs in the tasks of a Spark job."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.exceptions import ConfigError, DataError
from sparkdl.hf.extra import need

_WHAT = "HFTokenizer"
_FILE, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""What a tokeniser can make, in the order of the columns."""

_CLEAN_UP = (
    "clean_up_tokenization_spaces",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
)
_SPACES = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m")),
    *((" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)

_NO_LIMIT = 1_000_000  # transformers writes 1e30 where there is none


@dataclass(frozen=True, slots=True)
class UserTokenizer:
    """A tokeniser as the user gave it."""

    text: str  # its ``tokenizer.json``
    pad_token: str | None = None  # what fills texts up, if it has one
    inputs: tuple[str, ...] = INPUTS[:2]  # those of :data:`INPUTS` that its models take
    max_length: int | None = None  # the longest input of its models, if they have a limit
    padding_side: str = "right"  # ``"right"`` or ``"left"``
    truncation_side: str = "right"  # the side at which longer texts are cut off, likewise
    split_special_tokens: bool = False  # whether special tokens that a text holds are cut up as its words are
    clean_up: bool = False  # whether spaces before punctuation are taken out of texts that tokens become


def given(tokenizer: Any) -> UserTokenizer:
    """Read a tokeniser.

    It is a path of a ``tokenizer.json`` or its folder, a fast one of ``transformers``, or of ``tokenizers``.
    """
    if isinstance(tokenizer, str | os.PathLike):
        return _of_path(Path(tokenizer))
    if hasattr(tokenizer, "to_str") and hasattr(tokenizer, "encode_batch"):
        split = bool(getattr(tokenizer, "encode_special_tokens", False))  # not in its text
        limit = (tokenizer.truncation or {}).get("max_length")
        return _with_settings(tokenizer.to_str(), {"split_special_tokens": split, "model_max_length": limit})
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(
            f"tokenizer={tokenizer!r:.100}: expected the path of a tokenizer.json or of a folder with one, a "
            "fast tokeniser of transformers, or a tokenizers.Tokenizer"
        )
    settings = {
        "pad_token": tokenizer.pad_token,
        "model_input_names": tokenizer.model_input_names,
        "model_max_length": tokenizer.model_max_length,
        "padding_side": tokenizer.padding_side,
        "truncation_side": tokenizer.truncation_side,
        "split_special_tokens": getattr(tokenizer, "split_special_tokens", False),
        **{name: getattr(tokenizer, name, False) for name in _CLEAN_UP},
    }
    return _with_settings(backend.to_str(), settings)


def _of_path(path: Path) -> UserTokenizer:
    file = path / _FILE if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
        settings = file.with_name(_SETTINGS)
        found = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
        for name, content in ((_FILE, json.loads(text)), (_SETTINGS, found)):
            if not isinstance(content, dict):
                raise ValueError(f"{name} is no JSON object but a {type(content).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"tokenizer={str(path)!r}: expected a {_FILE}, or a folder with one, on the driver: {error}"
        ) from error
    return _with_settings(text, found)


def _with_settings(text: str, settings: Mapping[str, Any]) -> UserTokenizer:
    pad = settings.get("pad_token")
    pad = pad.get("content") if isinstance(pad, Mapping) else pad
    names = settings.get("model_input_names")
    names = names if isinstance(names, list | tuple) and names else INPUTS[:2]
    pad = pad if isinstance(pad, str) else None
    limit = settings.get("model_max_length")
    bounded = isinstance(limit, int | float) and 0 < limit < _NO_LIMIT
    content = json.loads(text)
    sides = [_side(what, settings, content) for what in ("padding", "truncation")]
    return UserTokenizer(
        text,
        pad or _padding_of(content),
        tuple(name for name in INPUTS if name in names),
        int(limit) if bounded and limit is not None else None,
        padding_side=sides[0],
        truncation_side=sides[1],
        split_special_tokens=settings.get("split_special_tokens") is True,
        clean_up=_cleans_up(settings, content),
    )


def _cleans_up(settings: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
    """Return whether transformers cleans texts up; for byte pairs it must be asked twice."""
    cleans, of_pairs = (settings.get(name) is True for name in _CLEAN_UP)
    model = content.get("model")
    return cleans and (of_pairs or not isinstance(model, Mapping) or model.get("type") != "BPE")


def _side(what: str, settings: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """Return the side at which texts are filled up, or cut off; without a setting that of the file."""
    own = content.get(what)
    of_file = own.get("direction") if isinstance(own, Mapping) else None
    return "left" if str(settings.get(f"{what}_side", of_file)).lower() == "left" else "right"


def _padding_of(content: Mapping[str, Any]) -> str | None:
    """Return the padding token that a ``tokenizer.json`` names, or the added token that is called so."""
    if isinstance(content.get("padding"), Mapping):
        found = content["padding"].get("pad_token")
        return found if isinstance(found, str) else None
    tokens = content.get("added_tokens")
    listed = tokens if isinstance(tokens, list) else []
    added = [token.get("content") for token in listed if isinstance(token, Mapping)]
    return next((token for token in ("[PAD]", "<pad>", "<|pad|>") if token in added), None)


@dataclass(frozen=True)
class TokenEncoding:
    """Turns texts into columns of token numbers."""

    text: str  # a ``tokenizer.json``
    names: tuple[str, ...]  # those of :data:`INPUTS` to make, fields of the struct that is returned
    length: int  # most tokens of a text
    pad_token: str | None = None  # fills texts up to ``length``; ``None`` to leave them as they are
    padding_side: str = "right"  # where they are filled up
    truncation_side: str = "right"  # where they are cut off
    special_tokens: bool = True  # whether to add those that models expect, such as ``[CLS]``
    split_special_tokens: bool = False  # whether those that a text holds are cut up as its words are
    pairs: bool = False  # whether there is a second text
    keep: bool = False  # whether null texts have null outputs, instead of being an error
    column: str = ""  # name of the column, for errors

    @property
    def arity(self) -> int:
        """Number of columns that are passed."""
        return 2 if self.pairs else 1

    def __call__(self, batches: Iterator[pa.Array | tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """Return a struct of lists for each batch of texts; DataError names the row of a null text."""
        return self.score(batches)

    def score(self, batches: Iterator[pa.Array | tuple[pa.Array, ...]], at: int = 0) -> Iterator[pa.Array]:
        """Return it for batches of which the first begins at row ``at``."""
        for batch in batches:
            columns = batch if isinstance(batch, tuple) else (batch,)
            yield self._encoded(columns, at)
            at += len(columns[0])

    def nulls(self, rows: int) -> pa.Array:
        """Return the results of rows that have none."""
        return pa.nulls(rows, pa.struct([(name, pa.list_(pa.int32())) for name in self.names]))

    def tokens(self, *texts: str) -> dict[str, list[int]]:
        """Return the numbers of one text, or of a pair."""
        encoded = self._encoded(tuple(pa.array([text]) for text in texts), 0)[0].as_py()
        return {name: encoded[name] for name in self.names}

    def _encoded(self, columns: tuple[pa.Array, ...], row: int) -> pa.Array:
        null = np.zeros(len(columns[0]), np.bool_)
        for column in columns:
            null |= column.is_null().to_numpy(zero_copy_only=False)
        if null.any() and not self.keep:
            where = _row(row + int(np.flatnonzero(null)[0]))
            raise DataError(
                f"column {self.column!r}, {where}: null; handleInvalid='skip' leaves such rows out, 'keep' "
                "gives null outputs for them",
                code="data-null",
            )
        texts = [column.filter(pa.array(~null)).to_pylist() for column in columns]
        tokenizer = _tokenizer(self)
        given: Any = list(zip(*texts, strict=True)) if self.pairs else texts[0]
        with _explained(f"column {self.column!r}: the tokenizer.json cannot be used"):
            encodings = tokenizer.encode_batch(given, add_special_tokens=self.special_tokens)
        found = {
            "input_ids": [encoding.ids for encoding in encodings],
            "attention_mask": [encoding.attention_mask for encoding in encodings],
            "token_type_ids": [encoding.type_ids for encoding in encodings],
        }
        fields = [_spread(found[name], null) for name in self.names]
        return pa.StructArray.from_arrays(fields, self.names, mask=pa.array(null) if null.any() else None)


@dataclass(frozen=True)
class Decoding:
    """Turns token numbers into texts."""

    text: str  # a ``tokenizer.json``
    skip_special: bool = True  # whether special tokens, such as padding, are left out
    clean_up: bool = False  # whether spaces before punctuation are taken out
    arity: int = 1
    names: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Return the texts of each batch."""
        tokenizer = _plain_tokenizer(self.text)
        for batch in batches:
            rows = [None if ids is None else [int(token) for token in ids] for ids in batch.to_pylist()]
            known = [ids for ids in rows if ids is not None]
            with _explained("the tokenizer.json cannot be used"):
                texts = map(self._cleaned, tokenizer.decode_batch(known, self.skip_special))
            yield pa.array([None if ids is None else next(texts) for ids in rows], pa.string())

    def _cleaned(self, text: str) -> str:
        for found, instead in _SPACES if self.clean_up else ():
            text = text.replace(found, instead)
        return text


def token_id(text: str, token: str) -> int | None:
    """Return a token's number, ``None`` if the tokeniser does not have it."""
    found: int | None = _plain_tokenizer(text).token_to_id(token)
    return found


def special_tokens(text: str, pairs: bool) -> int:
    """Return how many tokens are added to each text, or pair."""
    return int(_plain_tokenizer(text).num_special_tokens_to_add(pairs))


def check(text: str) -> None:
    """Check that a ``tokenizer.json`` can be read."""
    _plain_tokenizer(text)


def _spread(rows: list[list[int]], null: Any) -> pa.Array:
    """Return lists of int32 with an empty one for each null row."""
    if null.any():
        several = iter(rows)
        rows = [[] if missing else next(several) for missing in null]
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    values = np.concatenate([np.asarray(row, np.int32) for row in rows]) if rows else np.empty(0, np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(values.astype(np.int32, copy=False)))


def _row(index: int) -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"row {index} of partition {context.partitionId() if context else 0}"


@lru_cache(maxsize=8)
def _plain_tokenizer(text: str) -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # Spark's tasks share the cores already
    tokenizers = need("tokenizers", _WHAT)
    with _explained("this is no tokenizer.json"):
        return tokenizers.Tokenizer.from_str(text)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn errors of Rust into one of ours: they have no class of their own, or that of no ``Exception``."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ConfigError(f"{what}: {error!s:.300}", code="config-saved") from error


@lru_cache(maxsize=8)
def _tokenizer(encoding: TokenEncoding) -> Any:
    """Return this process's tokeniser with an encoding's settings, in place of those of its file."""
    plain, pad_token, length = _plain_tokenizer(encoding.text), encoding.pad_token, encoding.length
    number = None if pad_token is None else plain.token_to_id(pad_token)
    if pad_token is not None and number is None:
        raise ConfigError(f"the tokenizer.json has no padding token {pad_token!r:.100}", code="config-saved")
    with _explained("this is no tokenizer.json"):
        tokenizer = need("tokenizers", _WHAT).Tokenizer.from_str(plain.to_str())
        tokenizer.no_padding()
        tokenizer.enable_truncation(length, direction=encoding.truncation_side)
        tokenizer.encode_special_tokens = encoding.split_special_tokens
        if number is not None:
            padding = {"pad_id": number, "pad_token": pad_token, "length": length}
            tokenizer.enable_padding(direction=encoding.padding_side, **padding)
    return tokenizer
