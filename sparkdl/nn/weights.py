"""Weights as a stream of safetensors bytes, so that no array is as large as the file.

Joined in order, the pieces are a safetensors file: eight bytes with the length of the header, the header
(JSON: dtype, shape and place of each tensor) and the tensors' bytes. Tied tensors are written once; the
header's metadata says which name stands for which.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn

from sparkdl.exceptions import ConfigError, ModelError

CHUNK_BYTES = 8 << 20

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


@dataclass(frozen=True)
class Chunk:
    """A piece of the stream.

    Attributes:
        offset: where it begins; the header is the piece at 0.
        data: its bytes.
    """

    offset: int
    data: bytes


def write(module: nn.Module, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Cut a module's parameters and buffers into pieces: the header, then at most ``chunk_bytes`` each.

    Raises:
        ConfigError: if the state_dict holds something other than dense tensors.
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
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        flat = plain.reshape(-1).view(torch.uint8)
        for start in range(0, flat.numel(), chunk_bytes):
            piece = flat[start : start + chunk_bytes]
            yield Chunk(position, piece.numpy().tobytes())
            position += piece.numel()


class Reader:
    """Puts a stream back together, its pieces in any order.

    Args:
        header: the piece at offset 0.

    Attributes:
        tensors: the tensors by name, not filled until :meth:`finish` has returned.
        aliases: name of a tied tensor, and the one in ``tensors`` that stands for it.

    Raises:
        ConfigError: if it is not the header of a safetensors file.
    """

    def __init__(self, header: bytes) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._places: list[tuple[int, int, torch.Tensor]] = []
        try:
            length = int.from_bytes(header[:8], "little")
            if len(header) != 8 + length:
                raise ValueError(f"{len(header)} bytes, expected {8 + length}")
            entries = json.loads(header[8:])
            self.aliases: dict[str, str] = entries.pop("__metadata__", {})
            self.aliases.pop("format", None)
            self._end = len(header)
            for name, entry in entries.items():
                self._add(name, entry, len(header))
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise ConfigError(
                f"this is not the header of a safetensors file: {error!r}", code="config-saved"
            ) from error
        self._places.sort(key=lambda place: place[0])
        self._missing = self._end - len(header)
        self._seen = {0}

    def add(self, chunk: Chunk) -> None:
        """Copy a piece to where it belongs; one that was there already is passed over.

        Raises:
            ConfigError: if it lies outside of the file.
        """
        if chunk.offset in self._seen:
            return
        self._seen.add(chunk.offset)
        data = memoryview(chunk.data)
        begin, end = chunk.offset, chunk.offset + len(data)
        if not 0 <= begin <= end <= self._end:
            raise ConfigError(
                f"weights at {begin} to {end} lie outside of the file's {self._end} bytes",
                code="config-saved",
            )
        for start, stop, flat in self._overlapping(begin, end):
            low, high = max(begin, start), min(end, stop)
            source = torch.frombuffer(bytearray(data[low - begin : high - begin]), dtype=torch.uint8)
            flat[low - start : high - start] = source
        self._missing -= len(data)

    def finish(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name, without the tied ones that another stands for.

        Raises:
            ConfigError: if pieces are missing.
        """
        if self._missing:
            raise ConfigError(
                f"weights are not complete: {self._missing} of {self._end} bytes are missing",
                code="config-saved",
            )
        return self.tensors

    def _add(self, name: str, entry: Mapping[str, Any], start: int) -> None:
        dtype, shape, (begin, end) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        if end - begin != prod(shape) * dtype.itemsize or begin < 0:
            raise ValueError(f"{name} has {end - begin} bytes and shape {shape} of {dtype}")
        tensor = torch.empty(shape, dtype=dtype)
        self.tensors[name] = tensor
        if end > begin:
            self._places.append((start + begin, start + end, tensor.reshape(-1).view(torch.uint8)))
        self._end = max(self._end, start + end)

    def _overlapping(self, begin: int, end: int) -> Iterator[tuple[int, int, torch.Tensor]]:
        for start, stop, flat in self._places:
            if start >= end:
                break
            if stop > begin:
                yield start, stop, flat


def restore(module: nn.Module, tensors: Mapping[str, torch.Tensor], aliases: Mapping[str, str]) -> None:
    """Give a module the tensors of a file, with their dtype and without copying them.

    Args:
        module: built like the one that was written; tensors that are tied in it stay so.
        tensors: as :meth:`Reader.finish` returns them.
        aliases: names that were left out, and what stands for them.

    Raises:
        ModelError: naming what does not fit; nothing is changed then.
    """
    found = {**tensors, **{name: tensors[kept] for name, kept in aliases.items() if kept in tensors}}
    own = {name: value for name, value in module.state_dict(keep_vars=True).items() if _is_tensor(value)}
    problems = [f"{name} is missing in the file" for name in own if name not in found]
    problems += [f"{name} is not in the module" for name in found if name not in own]
    problems += [
        f"{name} has shape {tuple(found[name].shape)} in the file and {tuple(tensor.shape)} in the module"
        for name, tensor in own.items()
        if name in found and tensor.shape != found[name].shape
    ]
    if problems:
        some = "; ".join(problems[:8]) + ("; ..." if len(problems) > 8 else "")
        raise ModelError(f"the weights do not fit {type(module).__name__}: {some}", code="model-weights")
    extra = {name: found[name] for name in own if name.endswith("_extra_state")}
    owner: dict[int, torch.Tensor] = {}
    for name, tensor in own.items():
        if name not in extra:
            new = found[name]
            shared = owner.setdefault(id(new), tensor) is not tensor  # tied in the file, not in the module
            tensor.data = new.clone() if shared else new
    if extra:
        module.load_state_dict(extra, strict=False)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def place(name: str, tensor: torch.Tensor) -> object:
    """Return what is equal for tensors that are the same piece of memory."""
    if not tensor.numel():
        return name
    storage = tensor.untyped_storage().data_ptr()
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def unique_tensors(module: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors of a state_dict, those that are the same piece of memory once.

    Returns:
        The tensors by name, and for the names that were left out the one that stands for them.

    Raises:
        ConfigError: if the state_dict holds something that cannot be saved as plain tensors.
    """
    kept: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[object, str] = {}
    for name, value in module.state_dict().items():
        if not _is_tensor(value):
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
