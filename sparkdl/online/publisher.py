"""Versions of a model for those who serve it: complete, numbered, one of them current."""

from __future__ import annotations

import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path as LocalPath
from typing import Any

from torch import nn

from sparkdl.data.dataset import Dataset
from sparkdl.exceptions import ConfigError
from sparkdl.ml.local import save_local
from sparkdl.ml.model import TorchModel
from sparkdl.ml.persistence import described
from sparkdl.nn.saved.published import POINTER, Current, iteration_of, name_of
from sparkdl.train.checkpoint.store import Path, Store, join

_DRAFT = re.compile(r"\.version-[0-9]{8,}\.[0-9a-f]{32}", re.ASCII)

MakeModel = Callable[[nn.Module], Any]
"""From a trained module to what is saved: a model of :mod:`sparkdl.ml`."""


class Publisher:
    """Writes versions of a model to a folder; ``sparkdl serve`` and ``Predictor`` take the current one.

    A version is what ``model.save`` writes, under the number of completed iterations. The file
    ``current.json`` names the version to serve, and is replaced when a version is complete: who reads the
    folder finds the old version or the new one.

    Args:
        path: folder, or URL of one that fsspec or Spark's Hadoop opens, that the server reaches.
        model: makes a fitted model of the trained module, such as
            ``partial(TorchModel.from_module, example=rows, featuresCol="x")``. By default a TorchModel of the
            columns that were trained on.
        seconds: how long a version is served at least before the next one is written; ``None`` for no limit.
        batches: how many batches of the stream at least come to a version.
        keep: versions to keep, the newest; the current one always stays.

    Raises:
        ConfigError: if an argument cannot work, or the URL cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        model: MakeModel | None = None,
        *,
        seconds: float | None = 60.0,
        batches: int = 1,
        keep: int = 5,
    ) -> None:
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0
        ):
            raise ConfigError(f"Publisher(seconds={seconds!r}): expected a number of at least 0, or None")
        for name, count in (("batches", batches), ("keep", keep)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigError(f"Publisher({name}={count!r}): expected an integer of at least 1")
        if model is not None and not callable(model):
            raise ConfigError(f"Publisher(model={model!r:.100}): expected a callable from module to model")
        self._store = Store(path)
        self._root = self._store.root
        self._make = model
        self._seconds, self._batches, self._keep = seconds or 0.0, batches, keep

    @property
    def path(self) -> str:
        """The folder, as ``sparkdl serve`` takes it."""
        return self._store.outside(self._root)

    def current(self) -> Current | None:
        """Return which version is served, ``None`` if there is none yet.

        Raises:
            ConfigError: if the folder's ``current.json`` cannot be read.
        """
        pointer = join(self._root, POINTER)
        if not self._store.exists(pointer):
            return None
        return Current.parse(self._store.read(pointer), self.path)

    def versions(self) -> dict[int, str]:
        """Return paths of the versions, the oldest first, by completed iterations."""
        numbers = {iteration_of(name) for name in self._store.entries(self._root)}
        return {n: self._store.outside(self._full(n)) for n in sorted(n for n in numbers if n is not None)}

    @property
    def ready(self) -> bool:
        """Whether it is known how to make a model of a module."""
        return self._make is not None

    def due(self, iteration: int, batches: int) -> bool:
        """Return whether a version should be published.

        Args:
            iteration: completed iterations.
            batches: batches that were learned.
        """
        last = self.current()
        if last is None:
            return True
        waited = batches - last.batches >= self._batches and time.time() - last.seconds >= self._seconds
        return iteration != last.iteration and waited

    def check(self, module: nn.Module, data: Dataset) -> None:
        """Check that versions can be written, before anything is trained.

        Raises:
            ConfigError: if the module cannot be saved without a pickle, or no model can be made of it.
        """
        if self._make is None:
            columns, structure = {c.key: c for c in data.plan.columns}, data.plan.features
            example = structure.assemble(data.peek())
            names = list(dict.fromkeys(columns[key].source for key in structure.keys))
            if len(names) != len(structure.keys):
                raise ConfigError(
                    "Publisher(model=None): a model of sparse columns must be made by you: "
                    "Publisher(path, lambda module: TorchModel.from_module(module, ...))"
                )
            params: dict[str, Any] = {"featuresCols": names}
            if structure.names:
                params["inputNames"] = list(structure.names)
            self._make = lambda trained: TorchModel.from_module(trained, example=example, **params)
        described(self._make(module))

    def publish(self, module: nn.Module, iteration: int, batches: int = 0) -> str:
        """Write a version, and make it the current one; return its path.

        A version that is there already is complete, and of the same weights: it becomes current.

        Args:
            module: the trained module.
            iteration: completed iterations.
            batches: batches of the stream that it has learned.

        Raises:
            ConfigError: if the module cannot be saved.
            OSError: if the files cannot be written.
        """
        if self._make is None:
            raise ConfigError("Publisher(model=None): say how to make a model of the module")
        self._store.make(self._root)
        target = self._full(iteration)
        if not self._store.local or not self._store.exists(target):
            self._save(self._make(module), target)
        self._point(Current(iteration, batches, time.time()))
        self._prune()
        return self._store.outside(target)

    def rollback(self, iteration: int, *, delete: bool = False) -> str:
        """Make an older version the current one; return its path.

        Args:
            iteration: of the version.
            delete: whether to delete the newer ones.

        Raises:
            ConfigError: if there is no such version.
        """
        there = self.versions()
        if iteration not in there:
            raise ConfigError(
                f"rollback({iteration}): {self.path} has the versions {', '.join(map(str, there)) or 'none'}"
            )
        last = self.current()
        self._point(Current(iteration, last.batches if last is not None else 0, time.time()))
        for newer in (n for n in there if delete and n > iteration):
            self._delete(name_of(newer))
        return there[iteration]

    def _point(self, current: Current) -> None:
        """Replace ``current.json`` at once."""
        pointer = join(self._root, POINTER)
        if not self._store.local:
            self._store.write(pointer, current.to_json())
            return
        draft = join(self._root, f".{POINTER}.{uuid.uuid4().hex}")
        self._store.write(draft, current.to_json())
        os.replace(draft, pointer)
        self._store.sync(self._root)

    def _save(self, model: Any, target: str) -> None:
        """Write a version where nobody looks for it yet."""
        if self._store.local:
            for left in filter(_DRAFT.fullmatch, self._store.entries(self._root)):  # by a crash
                self._delete(left)
            draft = join(self._root, f".{os.path.basename(target)}.{uuid.uuid4().hex}")
            save_local(model, draft)
            os.rename(draft, target)
            return
        with tempfile.TemporaryDirectory() as folder:
            save_local(model, LocalPath(folder) / "model")
            for file in _files(LocalPath(folder) / "model"):
                where = join(target, *file.relative_to(LocalPath(folder) / "model").parts)
                self._store.make(os.path.dirname(where))
                self._store.write(where, file.read_bytes())

    def _prune(self) -> None:
        last = self.current()
        for old in [*self.versions()][: -self._keep]:
            if last is None or old != last.iteration:
                self._delete(name_of(old))

    def _delete(self, name: str) -> None:
        """Delete the files of a version, which lie in folders of its folder, and no others."""
        folder = join(self._root, name)
        for name, is_file in self._store.entries(folder).items():
            if not is_file and not self._store.is_link(join(folder, name)):
                inner = self._store.entries(join(folder, name))
                self._store.delete_files(join(folder, name), [n for n, plain in inner.items() if plain])
        self._store.delete_files(folder, [])

    def _full(self, iteration: int) -> str:
        return join(self._root, name_of(iteration))


def _files(folder: LocalPath) -> Iterator[LocalPath]:
    yield from sorted(path for path in folder.rglob("*") if path.is_file())
