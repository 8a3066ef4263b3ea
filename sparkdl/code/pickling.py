"""Pickles with a digest of the user's code that they name; a worker that reads one has the same code."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import uuid
from dataclasses import asdict
from types import FunctionType
from typing import Any

import cloudpickle

from sparkdl.code import digest, modules
from sparkdl.code.same import LoadedCode, Module, with_same_code
from sparkdl.code.walk import Names, Walk

_TRAILER = struct.Struct("<Q8s")
_MAGIC = b"sparkdlC"
_PROCESS = uuid.uuid4().hex


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Writes what there is of the user's code that a pickle names after it."""

    def __init__(self, file: Any, protocol: int | None = None) -> None:
        super().__init__(file, protocol)
        self._out = file
        self._names: set[Names] = set()
        self._walk = Walk(modules.is_users)

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is made again."""
        found = super().reducer_override(obj)
        if isinstance(obj, type | FunctionType):
            if found is NotImplemented:
                if modules.is_users(str(obj.__module__)):
                    self._names.add((obj.__module__, obj.__qualname__))
            elif isinstance(obj, FunctionType):  # travels itself; what it reads in modules does not
                self._names.update((module, name) for module, name, _ in self._walk.in_scope(obj))
        return found

    def dump(self, obj: Any) -> None:
        """Pickle an object."""
        super().dump(obj)
        if self._names:
            text = json.dumps(asdict(_loaded_code(sorted(self._names))), separators=(",", ":")).encode()
            self._out.write(text + _TRAILER.pack(len(text), _MAGIC))


class Unpickler(pickle.Unpickler):
    """Reads what a :class:`Pickler` has written, as :func:`loads` does."""

    def __init__(self, file: io.BytesIO, **options: Any) -> None:
        super().__init__(file, **options)
        self._file = file

    def load(self) -> Any:
        """Unpickle the object; errors as of :func:`loads`."""
        code = loaded_code_of(self._file.getvalue())
        return super().load() if code is None else with_same_code(code, self._load)

    def _load(self) -> Any:
        self._file.seek(0)
        return super().load()


def dumps(obj: Any, pickler: type[Pickler] = Pickler) -> bytes:
    """Pickle an object, with what there is of the user's code that it names."""
    file = io.BytesIO()
    pickler(file).dump(obj)
    return file.getvalue()


def loads(data: Any) -> Any:
    """Unpickle what :func:`dumps` returned, with its process's code; SerializationError names other files."""
    loaded = loaded_code_of(data)
    return pickle.loads(data) if loaded is None else with_same_code(loaded, lambda: pickle.loads(data))


def loaded_code_of(data: Any) -> LoadedCode | None:
    """Return the code that another process named with a pickle; ``None`` if it was this one, or of none."""
    view = memoryview(data).cast("B")
    if len(view) < _TRAILER.size:
        return None
    size, magic = _TRAILER.unpack(view[-_TRAILER.size :])
    if magic != _MAGIC:
        return None
    found = json.loads(bytes(view[-_TRAILER.size - size : -_TRAILER.size]))
    if found["process"] == process():
        return None
    found["names"] = [(module, name) for module, name in found["names"]]
    found["modules"] = {name: Module(**module) for name, module in found["modules"].items()}
    return LoadedCode(**found)


def process() -> str:
    """Return a name of this process."""
    return f"{_PROCESS}-{os.getpid()}"


def _loaded_code(names: list[Names]) -> LoadedCode:
    walk = Walk(modules.is_users)
    walk.follow(names)
    about = {
        name: Module(modules.file_of(name), modules.is_plain(name), modules.is_edited(name))
        for name in sorted(walk.modules | {module for module, _ in names if modules.is_users(module)})
    }
    return LoadedCode(
        process=process(),
        dialect=digest.dialect(),
        names=names,
        code=walk.code,
        values=walk.values,
        modules=about,
    )
