"""Versions of a model for those who serve it: numbered, complete or as changes, one of them current."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path as LocalPath
from typing import Any

from torch import nn

from sparkdl.data.dataset import Dataset
from sparkdl.exceptions import ConfigError, integer_option, is_number
from sparkdl.ml.estimators.model import TorchModel
from sparkdl.ml.persistence.local import save_local
from sparkdl.ml.persistence.saving import described
from sparkdl.nn.embedding import embedding_variables
from sparkdl.online.chains import content_of, identity_in, metadata_in, pointer_to
from sparkdl.saved.changes import write_changes
from sparkdl.saved.identity import Identity, identity_of, marked, told
from sparkdl.saved.metadata import digest_of
from sparkdl.saved.published import LONGEST, POINTER, Chains, ChangesFile, Current, changes_name, name_of
from sparkdl.train.checkpoint.lock import alone_in
from sparkdl.train.checkpoint.store import CheckpointStore, Path, join

_DRAFT = re.compile(
    r"\.(version-[0-9]{8,}|changes-[0-9]{8,}-[0-9]{8,}\.safetensors|current\.json)\.[0-9a-f]{32}", re.ASCII
)

MakeModel = Callable[[nn.Module], Any]
"""From a trained module to what is saved: a model of :mod:`sparkdl.ml`."""


class Publisher:
    """Writes versions of a model to a folder; ``sparkdl serve`` and ``Predictor`` take the current one.

    A version is what ``model.save`` writes, under the number of completed iterations. Of a model with
    embedding variables one of ``full_every`` versions is complete; the others are files of the rows that have
    changed since the version before, and of all other weights. The file ``current.json`` names the version to
    serve, and is replaced when all files of a version are there: who reads the folder finds the old version
    or the new one.

    Args:
        path: folder, or URL of one that fsspec or Spark's Hadoop opens, that the server reaches.
        model: makes a fitted model of the trained module, such as
            ``partial(TorchModel.from_module, example=rows, featuresCol="x")``. By default a TorchModel of the
            columns that were trained on.
        seconds: how long a version is served at least before the next one is written; ``None`` for no limit.
        batches: how many batches of the stream at least come to a version.
        keep: versions to keep, the newest. The current one stays, too, and what these are changes of.
        full_every: one of so many versions is complete; 1 for all. So is the first one of a program, and one
            that differs from the version before by more than rows and values of weights.

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
        full_every: int = 8,
    ) -> None:
        if seconds is not None and not (is_number(seconds) and seconds >= 0):
            raise ConfigError(f"Publisher(seconds={seconds!r}): expected a number of at least 0, or None")
        for name, count in (("batches", batches), ("keep", keep), ("full_every", full_every)):
            integer_option("Publisher", name, count, 1)
        if model is not None and not callable(model):
            raise ConfigError(f"Publisher(model={model!r:.100}): expected a callable from module to model")
        self._store = CheckpointStore(path)
        self._root = self._store.root
        self._make = model
        self._seconds, self._batches, self._keep = seconds or 0.0, batches, keep
        self._full_every = full_every
        self._last: _Published | None = None

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
        """Return the versions by completed iterations, the oldest first: a folder, or a file of changes."""
        chains = Chains.of(self._store.entries(self._root))
        return {n: self._store.outside(join(self._root, chains.names(n)[-1])) for n in chains.iterations}

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
        enough = not 0 <= batches - last.batches < self._batches  # fewer after a rollback
        waited = enough and time.time() - last.seconds >= self._seconds
        return iteration != last.iteration and waited

    def check(self, module: nn.Module, data: Dataset, begun: Identity | None = None) -> None:
        """Check that versions can be written, before anything is trained.

        Args:
            module: the module.
            data: the rows.
            begun: of which moment of which run the module is; ``None`` if the run begins.

        Raises:
            ConfigError: if the module cannot be saved without a pickle, or no model can be made of it, as
                where a transform or collate stands before it; or if the version that is served is of another
                run.
        """
        self.check_run(begun)
        if self._make is None:
            if data.transform is not None or data.collate is not None:
                what = "a transform" if data.transform is not None else "collate"
                raise ConfigError(
                    f"Publisher(model=None): the rows go through {what} before they enter the module, and a "
                    "model of the module alone would be served without it. Say how to make a model that does "
                    "the same: Publisher(path, lambda module: TorchModel.from_module(...)), of a module that "
                    "begins with it"
                )
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

    def check_run(self, own: Identity | None) -> None:
        """Check that the version that is served, if any, is of one run.

        Args:
            own: a moment of the run; ``None`` if it begins.

        Raises:
            ConfigError: if it is of another run.
        """
        last = self.current()
        if last is not None and (own is None or not own.came_through(last.identity)):
            raise ConfigError(
                f"Publisher({self.path!r}): the version that is served is of {told(last.identity)}, and this "
                f"run is {told(own)}, which never was there. Give each run a folder of its own, "
                "or go back with rollback(), or delete the folder",
                code="config-saved",
            )

    def publish(self, module: nn.Module, iteration: int, batches: int = 0, *, same_run: bool = False) -> str:
        """Write a version, and make it the current one; return its path.

        A version of the same number is complete. It becomes current if it has the same weights; another one
        is an error.

        Args:
            module: the trained module.
            iteration: completed iterations.
            batches: batches of the stream that it has learned.
            same_run: whether the version that is served must be of the module's own run. In a local folder
                one of two runs that begin at once publishes, the other is refused. Stores without locks can
                let both write within the same moments; what is served is one of the two, and the other run
                is refused when it publishes again.

        Raises:
            ConfigError: if the module cannot be saved, or a version of this number has other weights, or the
                version that is served is of another run and must not be.
            OSError: if the files cannot be written.
        """
        if self._make is None:
            raise ConfigError(
                "Publisher(model=None): how to make a model of the module follows from the first batch that "
                "this program learns. Learn one, or say it: Publisher(path, model)"
            )
        self._store.make(self._root)
        with self._alone():
            if same_run:
                self.check_run(identity_of(module) or Identity("", iteration))
            return self._publish(self._make(module), iteration, batches)

    def _publish(self, model: Any, iteration: int, batches: int) -> str:
        target, changes = join(self._root, name_of(iteration)), tuple[ChangesFile, ...]()
        there = metadata_in(self._store, target)
        if there is None:
            changes = self._write_changes(model.module, iteration)
        digest = self._last.digest if changes and self._last is not None else self._save(model, target, there)
        identity = marked(model.module)
        self._last = _Published(identity, changes, _shapes(model.module), digest)
        self._point(Current(iteration, batches, time.time(), changes, identity.run, digest))
        self._prune()
        return self._store.outside(join(self._root, changes[-1].name) if changes else target)

    def rollback(self, iteration: int, batches: int | None = None, *, delete: bool = False) -> str:
        """Make an older version the current one; return its path.

        Args:
            iteration: of the version.
            batches: batches of the stream from which the next version is counted; by default those of the
                version that is served now.
            delete: whether to delete the newer ones.

        Raises:
            ConfigError: if there is no such version, or its files are damaged or not of one run.
        """
        self._store.make(self._root)
        with self._alone():
            return self._rollback(iteration, batches, delete)

    def _rollback(self, iteration: int, batches: int | None, delete: bool) -> str:
        there, last = self.versions(), self.current()
        chains = Chains.of(self._store.entries(self._root))
        if iteration not in there:
            raise ConfigError(
                f"rollback({iteration}): {self.path} has the versions {', '.join(map(str, there)) or 'none'}"
            )
        if batches is None:
            batches = last.batches if last is not None else 0
        self._point(pointer_to(self._store, self._root, iteration, last, batches, time.time()))
        self._last = None
        if delete:
            for name in chains.newer(iteration):
                self._delete(name)
        return there[iteration]

    def _write_changes(self, module: nn.Module, iteration: int) -> tuple[ChangesFile, ...]:
        """Write what has changed since the version before; return the changes that lead to this one."""
        last, current, own = self._last, self.current(), identity_of(module)
        if (
            last is None
            or current is None
            or (current.identity.point, current.changes) != (last.identity.point, last.changes)
            or not last.identity.iteration < iteration
            or own is None
            or own.iteration != iteration  # the caller counts otherwise
            or not own.came_through(last.identity)
            or len(last.changes) + 1 >= self._full_every
            or not embedding_variables(module)
            or _shapes(module) != last.shapes
        ):
            return ()
        since = last.identity.iteration
        base = last.changes[-1].sha256 if last.changes else last.digest
        data = write_changes(module, since, iteration, base)
        if data is None or self._store.exists(join(self._root, changes_name(since, iteration))):
            return ()
        self._delete_drafts()
        change = ChangesFile(since, iteration, hashlib.sha256(data).hexdigest())
        chain = (*last.changes, change)
        pointer = Current(iteration, changes=chain, run=own.run, digest=last.digest)
        if 2 * len(pointer.to_json()) > LONGEST:  # nobody reads a longer one
            return ()
        self._replace(change.name, data)
        return chain

    def _alone(self) -> AbstractContextManager[None]:
        """Let one program at a time publish to a local folder."""
        return alone_in(self._root) if self._store.local else nullcontext()

    def _point(self, current: Current) -> None:
        self._replace(POINTER, current.to_json())

    def _replace(self, name: str, data: bytes) -> None:
        """Write a file of the folder, and put it in the place of what was called so."""
        target = join(self._root, name)
        if not self._store.local:
            self._store.write(target, data)
            return
        draft = join(self._root, f".{name}.{uuid.uuid4().hex}")
        self._store.write(draft, data)
        os.replace(draft, target)
        self._store.sync(self._root)

    def _save(self, model: Any, target: str, there: Mapping[str, Any] | None) -> str:
        """Write a version where nobody looks for it yet; return its checksum."""
        if self._store.local:
            self._delete_drafts()
            draft = join(self._root, f".{os.path.basename(target)}.{uuid.uuid4().hex}")
            save_local(model, draft)
            saved = metadata_in(self._store, draft)
            if there is None:
                os.rename(draft, target)
            else:
                self._delete(os.path.basename(draft))
            return self._checked(saved, there, target)
        with tempfile.TemporaryDirectory() as folder:
            model_folder = LocalPath(folder) / "model"
            save_local(model, model_folder)
            saved = metadata_in(CheckpointStore(folder), join(folder, "model"))
            digest = self._checked(saved, there, target)
            if there is not None:
                return digest
            for file in sorted(path for path in model_folder.rglob("*") if path.is_file()):
                where = join(target, *file.relative_to(model_folder).parts)
                self._store.make(os.path.dirname(where))
                self._store.write(where, file.read_bytes())
        return digest

    def _checked(self, saved: Any, there: Mapping[str, Any] | None, target: str) -> str:
        """Return the checksum of the version in a folder, which must be what was saved now."""
        if there is None:
            return digest_of(saved)
        if content_of(saved) != content_of(there):
            raise ConfigError(
                f"publish: {self._store.outside(target)} is there already and has other weights: it is of "
                f"{told(identity_in(there))}, and this module of {told(identity_in(saved))}. Give each run a "
                "folder of its own, or delete the versions of the run before",
                code="config-saved",
            )
        return digest_of(there)

    def _delete_drafts(self) -> None:
        """Delete what a crash has left."""
        for left in filter(_DRAFT.fullmatch, self._store.entries(self._root) if self._store.local else ()):
            self._delete(left)

    def _prune(self) -> None:
        last, chains = self.current(), Chains.of(self._store.entries(self._root))
        kept = {*chains.iterations[-self._keep :], *([last.iteration] if last is not None else [])}
        for name in chains.needless(kept):
            self._delete(name)

    def _delete(self, name: str) -> None:
        """Delete a file, a link, or the files in the folders of a version's folder, and no others."""
        folder = join(self._root, name)
        if name.removeprefix(".").startswith(("changes-", POINTER)) or self._store.is_link(folder):
            self._store.delete(folder)
            return
        for name, is_file in self._store.entries(folder).items():
            if not is_file and not self._store.is_link(join(folder, name)):
                inner = self._store.entries(join(folder, name))
                self._store.delete_files(join(folder, name), [n for n, plain in inner.items() if plain])
        self._store.delete_files(folder, [])


@dataclass(frozen=True, slots=True)
class _Published:
    identity: Identity
    changes: tuple[ChangesFile, ...]
    shapes: dict[str, tuple[int, ...]]
    digest: str


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all that a file of changes has in full."""
    return {name: tuple(value.shape) for name, value in (*module.named_parameters(), *module.named_buffers())}
