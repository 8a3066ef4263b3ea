"""Weights as a stream of safetensors bytes, so that no array is as large as the file.

Joined in order, the pieces are a safetensors file: eight bytes with the length of the header, the header
(JSON: dtype, shape and place of each tensor) and the tensors' bytes. Tied tensors are written once; the
header's metadata says which name stands for which.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.embedding import row_names
from sparkdl.saved.integrity import Chunk, check_digest, check_joined, unique_names

_LONGEST_HEADER = 100_000_000  # as of the safetensors library

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def write(module: nn.Module, chunk_bytes: int) -> Iterator[Chunk]:
    """Cut a module's parameters and buffers into pieces: the header, then at most ``chunk_bytes`` each.

    Raises ConfigError if the state_dict holds something other than dense tensors.
    """
    kept, aliases = unique_tensors(module)
    kept = dict(sorted(kept.items(), key=lambda item: (-item[1].element_size(), item[0])))  # aligned
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", **aliases}}
    end = 0
    for name, tensor in kept.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        entry = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        entries[name] = entry
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    yield Chunk(0, header)
    position = len(header)
    for tensor in kept.values():
        flat = flat_bytes(tensor)
        for start in range(0, flat.numel(), chunk_bytes):
            piece = flat[start : start + chunk_bytes]
            yield Chunk(position, piece.numpy().tobytes())
            position += piece.numel()


@dataclass
class _Place:
    """Where a tensor lies in the file; memory is taken when the first piece of it has arrived."""

    name: str
    begin: int
    end: int
    dtype: torch.dtype
    shape: list[int]
    flat: torch.Tensor | None = None

    def bytes(self) -> torch.Tensor:
        if self.flat is None:
            try:
                self.flat = torch.empty(self.end - self.begin, dtype=torch.uint8)
            except (RuntimeError, MemoryError, OverflowError) as error:
                raise ConfigError(
                    f"the weights cannot be read: there is no memory for {self.name}, shape {self.shape} of "
                    f"{self.dtype}, {self.end - self.begin} bytes: {error}",
                    code="config-saved",
                ) from error
        return self.flat

    def tensor(self) -> torch.Tensor:
        try:
            return self.bytes().view(self.dtype).reshape(self.shape)
        except RuntimeError as error:  # no elements, but dimensions whose product torch cannot hold
            raise ConfigError(
                f"the weights cannot be read: {self.name} has shape {self.shape}: {error}",
                code="config-saved",
            ) from error


class StreamReader:
    """Puts a stream back together, its pieces in any order.

    Tensors and pieces must both cover the file exactly, without holes and overlaps: the result is always the
    written bytes, never uninitialised memory. ``tensors`` holds them by name when :meth:`finish` has
    returned; ``aliases`` names a tied one, and the one that stands for it.
    """

    def __init__(self, header: bytes) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._header = header
        try:
            self.aliases, self._places = _parse(header)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"this is not the header of a safetensors file: {error!r:.300}", code="config-saved"
            ) from error
        self._end = self._places[-1].end if self._places else len(header)
        self._begins = [place.begin for place in self._places]
        self._pieces = {0: len(header)}

    def add(self, chunk: Chunk) -> None:
        """Copy a piece to where it belongs; one that was there already is passed over."""
        data = memoryview(chunk.data)
        begin, end = chunk.offset, chunk.offset + len(data)
        if self._pieces.get(begin) == end or begin == end:
            return
        if begin in self._pieces or end > self._end:
            raise ConfigError(
                f"weights at {begin} to {end} lie outside of the file's {self._end} bytes, or upon others",
                code="config-saved",
            )
        self._pieces[begin] = end
        for place in self._places[max(bisect_right(self._begins, begin) - 1, 0) :]:
            if place.begin >= end:
                break
            low, high = max(begin, place.begin), min(end, place.end)
            if low < high:
                source = torch.frombuffer(bytearray(data[low - begin : high - begin]), dtype=torch.uint8)
                place.bytes()[low - place.begin : high - place.begin] = source

    def finish(self, sha256: str | None = None) -> dict[str, torch.Tensor]:
        """Return the tensors by name, without the tied ones that another stands for.

        ``sha256`` is the whole file's, as :class:`sparkdl.saved.integrity.Hashed` makes it, if there is one.
        """
        missing = self._end - sum(end - begin for begin, end in self._pieces.items())
        if missing > 0:
            raise ConfigError(
                f"weights are not complete: {missing} of {self._end} bytes are missing", code="config-saved"
            )
        check_joined(self._pieces.items(), self._end)
        if sha256 is not None:
            digest = hashlib.sha256(self._header)
            for place in self._places:
                digest.update(place.bytes().numpy().data)
            check_digest("the weights are", digest.hexdigest(), sha256)
        self.tensors = {place.name: place.tensor() for place in self._places}
        return self.tensors


def _parse(header: bytes) -> tuple[dict[str, str], list[_Place]]:
    """Return a header's metadata, without the format, and its tensors in the order of their places."""
    length = int.from_bytes(header[:8], "little")
    if len(header) != 8 + length:
        raise ValueError(f"{len(header)} bytes, expected {8 + length}")
    if length > _LONGEST_HEADER:
        raise ValueError(f"{length} bytes, expected at most {_LONGEST_HEADER}")
    entries = json.loads(header[8:], object_pairs_hook=unique_names)
    aliases = entries.pop("__metadata__", {})
    aliases.pop("format", None)
    places = [_place_of(name, entry, len(header)) for name, entry in entries.items()]
    places.sort(key=lambda place: (place.begin, place.end))
    end = len(header)
    for place in places:
        if place.begin != end:
            raise ValueError(
                f"{place.name} begins at {place.begin}, expected {end}: tensors overlap or leave holes"
            )
        end = place.end
    for name, other in aliases.items():
        if name in entries or other not in entries:
            raise ValueError(f"{name} cannot stand for {other!r}")
    return aliases, places


def _place_of(name: str, entry: Mapping[str, Any], start: int) -> _Place:
    dtype, shape, (begin, end) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    for number in (*shape, begin, end):
        if type(number) is not int or not 0 <= number < 1 << 62:
            raise ValueError(f"{name}: {number!r:.50} is no size")
    if end - begin != prod(shape) * dtype.itemsize:
        raise ValueError(f"{name} has {end - begin} bytes and shape {shape} of {dtype}")
    return _Place(name, start + begin, start + end, dtype, shape)


def check_fit(module: nn.Module, tensors: Mapping[str, torch.Tensor], aliases: Mapping[str, str]) -> None:
    """Check that a module, which may be on the meta device, has the tensors of a file."""
    found, own, kept = _with_tied(tensors, aliases), _own(module), row_names(module)
    problems = [f"{name} is missing in the file" for name in own if name not in found]
    problems += [f"{name} is not in the module" for name in found if name not in own]
    both = {name: tensor for name, tensor in own.items() if name in found and not is_lazy(tensor)}
    problems += [
        f"{name} has shape {tuple(found[name].shape)} in the file and {tuple(tensor.shape)} in the module"
        for name, tensor in both.items()
        if tensor.shape != found[name].shape and name not in kept
    ]
    problems += [
        f"{name} has dtype {found[name].dtype} in the file, which cannot be trained"
        for name, tensor in both.items()
        if tensor.requires_grad and not (found[name].is_floating_point() or found[name].is_complex())
    ]
    if problems:
        some = "; ".join(problems[:8]) + ("; ..." if len(problems) > 8 else "")
        raise ModelError(f"the weights do not fit {type(module).__name__}: {some}", code="model-weights")


def restore(module: nn.Module, tensors: Mapping[str, torch.Tensor], aliases: Mapping[str, str]) -> None:
    """Give a module the tensors of a file, with their dtype and without copying them.

    The module is built like the one that was written; tensors that are tied in it stay so. ``aliases`` are
    names left out, with those of the same tensors that were not. ModelError names what does not fit; nothing
    is changed then.
    """
    check_fit(module, tensors, aliases)
    found, own = _with_tied(tensors, aliases), _own(module)
    rows = row_names(module)
    extra = {name: found[name] for name in own if name.endswith("_extra_state") or name in rows}
    owner: dict[int, torch.Tensor] = {}
    for name, tensor in own.items():
        if name not in extra:
            new = found[name]
            shared = owner.setdefault(id(new), tensor) is not tensor  # tied in the file, not in the module
            tensor.data = new.clone() if shared else new
    if extra:
        try:
            module.load_state_dict(extra, strict=False)
        except RuntimeError as error:  # rows of embedding variables are checked when they are taken over
            raise ModelError(
                f"the weights do not fit {type(module).__name__}: {error}", code="model-weights"
            ) from error


def _with_tied(tensors: Mapping[str, torch.Tensor], aliases: Mapping[str, str]) -> dict[str, torch.Tensor]:
    return {**tensors, **{name: tensors[kept] for name, kept in aliases.items() if kept in tensors}}


def _own(module: nn.Module) -> dict[str, torch.Tensor]:
    values: dict[str, Any] = module.state_dict(keep_vars=True)
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def all_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Return parameters and persistent buffers by the name that the state_dict has, tied ones each time."""
    for prefix, part in module.named_modules(remove_duplicate=False):
        tensors = {**part._parameters, **part._buffers}
        for name, tensor in tensors.items():
            if tensor is not None and name not in part._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, tensor


def place(name: str, tensor: torch.Tensor) -> object:
    """Return a key that is equal for tensors that are the same piece of memory."""
    if not tensor.numel():
        return name
    storage = tensor.untyped_storage().data_ptr()
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def unique_tensors(module: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return a state_dict's tensors, those that share memory once, and for other names the one that stays."""
    kept: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[object, str] = {}
    for name, value in module.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise ConfigError(
                f"{type(module).__name__}: state_dict entry {name!r} is a {type(value).__name__}; only "
                "tensors can be saved, so get_extra_state must return a tensor"
            )
        if value.dtype not in _NAMES or value.layout is not torch.strided or value.is_meta:
            raise ConfigError(
                f"{name} is a {value.dtype} {value.layout} tensor on {value.device}: cannot be saved"
            )
        other = first.setdefault(place(name, value), name)
        if other == name:
            kept[name] = value
        else:
            aliases[name] = other
    return kept, aliases


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a dense tensor in the order of its elements, uint8."""
    if not tensor.numel():  # may have strides of which no bytes can be viewed
        return torch.empty(0, dtype=torch.uint8)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)
