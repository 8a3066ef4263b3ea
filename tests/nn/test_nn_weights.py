from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load
from torch import nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.saved import weights
from sparkdl.saved.integrity import Chunk, Hashed


class Mixed(nn.Module):
    """Tied weights, several dtypes, buffers, tensors without elements or dimensions, extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.out = nn.Linear(3, 7, bias=False)
        self.out.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(3)
        self.half = nn.Linear(2, 2).bfloat16()
        self.wave = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.number = nn.Parameter(torch.tensor(2.5, dtype=torch.float64))
        self.turned = nn.Parameter(torch.randn(2, 3).t())
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("hidden", torch.ones(2), persistent=False)
        self.extra = torch.zeros(2)

    def get_extra_state(self) -> torch.Tensor:
        return self.extra

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.extra = state


def read(chunks: list[Chunk]) -> weights.StreamReader:
    reader = weights.StreamReader(chunks[0].data)
    for chunk in chunks[1:]:
        reader.add(chunk)
    reader.finish()
    return reader


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 200), st.randoms(use_true_random=False))
def test_a_module_comes_back_whatever_the_size_and_order_of_the_pieces(
    size: int, order: random.Random
) -> None:
    module = Mixed()
    module.extra = torch.tensor([1, 2])
    chunks = list(weights.write(module, size))
    assert all(len(chunk.data) <= size for chunk in chunks[1:])
    rest = [*chunks[1:], *chunks[1:3]]  # a piece may come twice
    order.shuffle(rest)
    reader = read([chunks[0], *rest])
    again = Mixed()
    weights.restore(again, reader.tensors, reader.aliases)
    for name, value in module.state_dict().items():
        assert again.state_dict()[name].dtype is value.dtype, name
        assert torch.equal(again.state_dict()[name], value), name
    assert again.out.weight is again.embed.weight
    assert reader.aliases == {"out.weight": "embed.weight"}


def test_the_pieces_are_a_safetensors_file() -> None:
    module = Mixed()
    found = load(b"".join(chunk.data for chunk in weights.write(module, 10)))
    own = module.state_dict()
    assert found.keys() == own.keys() - {"out.weight"}
    assert all(torch.equal(value, own[name]) for name, value in found.items())
    offset = 0
    for chunk in weights.write(module, 10):
        assert chunk.offset == offset
        offset += len(chunk.data)


def test_dtypes_of_the_file_win() -> None:
    module, again = nn.Linear(2, 2).half(), nn.Linear(2, 2)
    reader = read(list(weights.write(module, 1 << 20)))
    parameter = again.weight
    weights.restore(again, reader.tensors, reader.aliases)
    assert again.weight is parameter
    assert parameter.dtype is torch.float16
    assert parameter.requires_grad


def test_what_is_tied_in_the_file_only_is_copied() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    again = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    reader = read(list(weights.write(module, 1 << 20)))
    weights.restore(again, reader.tensors, reader.aliases)
    assert torch.equal(again[0].weight, again[1].weight)
    assert again[0].weight.data_ptr() != again[1].weight.data_ptr()


def test_a_module_without_tensors() -> None:
    reader = read(list(weights.write(nn.ReLU(), 1 << 20)))
    weights.restore(nn.ReLU(), reader.tensors, reader.aliases)


def test_what_does_not_fit_is_named_and_nothing_is_changed() -> None:
    reader = read(list(weights.write(nn.Linear(2, 3), 1 << 20)))
    module = nn.Sequential()
    module.weight = nn.Parameter(torch.ones(3, 3))
    module.other = nn.Parameter(torch.ones(3))
    with pytest.raises(
        ModelError, match="other is missing in the file; bias is not in the module; weight has"
    ):
        weights.restore(module, reader.tensors, reader.aliases)
    assert torch.equal(module.weight, torch.ones(3, 3))


def test_missing_and_stray_pieces() -> None:
    header, first, *rest = weights.write(nn.Linear(4, 4), 20)
    reader = weights.StreamReader(header.data)
    for chunk in rest:
        reader.add(chunk)
    with pytest.raises(ConfigError, match=r"not complete: 16 of \d+ bytes are missing"):
        reader.finish()
    with pytest.raises(ConfigError, match="outside of the file"):
        reader.add(Chunk(10**9, b"x"))
    reader.add(first)
    reader.finish()


def raw(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


def header_of(entries: object) -> bytes:
    return raw(json.dumps(entries))


def entry(shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"abc",
        header_of([]),
        header_of({"a": 3}),
        header_of({"a": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}),
        header_of({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}),
        header_of({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}),
        header_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}),
        header_of({})[:-1],
        header_of(None),
        header_of({"__metadata__": 3}),
        header_of({"__metadata__": {"a": "b"}}),
        header_of({"a": entry([1], 0, 4), "__metadata__": {"a": "a"}}),
        header_of({"a": entry([True], 0, 4)}),
        header_of({"a": entry([1.0], 0, 4)}),
        header_of({"a": entry([2**62, 4], 0, 2**66)}),
        header_of({"a": entry([1], 4, 8)}),
        header_of({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}),
        header_of({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}),
        header_of({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}),
        raw('{"a": %s, "a": %s}' % ((json.dumps(entry([1], 0, 4)),) * 2)),
        raw("[" * 100_000),
        raw('{"a":' * 100_000),
        raw("9" * 5000),
        (2**64 - 1).to_bytes(8, "little") + b"{}",
    ],
)
def test_headers_that_are_none(header: bytes) -> None:
    with pytest.raises(ConfigError, match="not the header of a safetensors file"):
        weights.StreamReader(header)


def test_pieces_that_overlap_leave_no_hole_unseen() -> None:
    """The number of bytes may be right, and memory was returned as it was found."""
    header, first, second, *rest = weights.write(nn.Linear(4, 4), 20)
    reader = weights.StreamReader(header.data)
    for chunk in (first, Chunk(first.offset + 10, second.data), *rest):
        reader.add(chunk)
    with pytest.raises(ConfigError, match="pieces overlap or are missing: one begins at"):
        reader.finish()
    for odd in (Chunk(first.offset, first.data[:-1]), Chunk(0, b"x"), Chunk(3, header.data)):
        with pytest.raises(ConfigError, match="upon others|overlap"):
            read([header, first, odd, second, *rest])


@pytest.mark.parametrize(("offset", "data"), [(None, b""), (-1, b""), (0, None), (True, b""), (0, "text")])
def test_what_is_no_piece(offset: Any, data: Any) -> None:
    with pytest.raises(ConfigError, match="a piece has"):
        Chunk(offset, data)


def test_a_checksum_is_that_of_the_whole_file() -> None:
    hashed = Hashed(weights.write(Mixed(), 7))
    chunks = list(hashed)
    assert hashed.sha256 == hashlib.sha256(b"".join(chunk.data for chunk in chunks)).hexdigest()
    for place in (0, 1, len(chunks) - 1):
        reader = weights.StreamReader(chunks[0].data)
        for number, chunk in enumerate(chunks[1:], 1):
            data = bytes([chunk.data[0] ^ 128]) + chunk.data[1:] if number == place else chunk.data
            reader.add(Chunk(chunk.offset, data))
        if place == 0:
            reader.finish(hashed.sha256)
            continue
        with pytest.raises(ConfigError, match="the weights are damaged") as caught:
            reader.finish(hashed.sha256)
        assert caught.value.code == "config-damaged"


def test_what_a_header_only_promises_takes_no_memory() -> None:
    reader = weights.StreamReader(header_of({"a": entry([2**50], 0, 2**52)}))
    with pytest.raises(ConfigError, match="not complete"):
        reader.finish()
    with pytest.raises(ConfigError, match="there is no memory for a"):
        reader.add(Chunk(reader._end - 4, b"1234"))


def test_integers_are_no_parameters() -> None:
    tensors = {"weight": torch.zeros(1, 2, dtype=torch.int32), "bias": torch.zeros(1)}
    with pytest.raises(ModelError, match=r"weight has dtype torch\.int32 .*, which cannot be trained"):
        weights.restore(nn.Linear(2, 1), tensors, {})


def test_what_cannot_be_written() -> None:
    class Odd(nn.Module):
        def get_extra_state(self) -> dict[str, int]:
            return {"a": 1}

    with pytest.raises(ConfigError, match="'_extra_state' is a dict; only tensors can be saved"):
        list(weights.write(Odd(), 1 << 20))
    with pytest.raises(ConfigError, match="weight is a torch.float32 .* on meta: cannot be saved"):
        list(weights.write(nn.Linear(2, 2, device="meta"), 1 << 20))
