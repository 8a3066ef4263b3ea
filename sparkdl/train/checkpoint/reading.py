"""Reading checkpoints: nothing is used before its checksum is compared."""

from __future__ import annotations

import json
import posixpath
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from sparkdl.allreduce import shard_files
from sparkdl.allreduce.row_layers import complete, rows_only
from sparkdl.allreduce.shard_states import ShardStates, joined_rows, unpacked
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.keyed.entries import ROW
from sparkdl.nn.embedding import EmbeddingVariable, row_names
from sparkdl.saved.identity import Identity, mark
from sparkdl.saved.weights import place
from sparkdl.train.checkpoint import exported
from sparkdl.train.checkpoint.folder import CheckpointFolder, name_of
from sparkdl.train.checkpoint.mark import ROWS_APART, STATE, TRAINING, WEIGHTS, Base, Mark, damaged
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.checkpoint.store import CheckpointStore, Path, join
from sparkdl.wire.frame import Array

_UNREADABLE = (
    SafetensorError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What parsers raise for content that they do not expect."""


def latest(path: Path) -> str | None:
    """Return the path of a folder's newest complete checkpoint, ``None`` if there is none.

    Args:
        path: what :class:`sparkdl.train.hooks.checkpoint.Checkpoint` was given.
    """
    return CheckpointFolder(path).latest()


def load_weights(path: Path, module: nn.Module) -> None:
    """Copy the weights and buffers of a checkpoint into a module, once their checksum is compared.

    Args:
        path: one checkpoint, such as ``latest("runs/lenet")`` returns; or a file ``*.safetensors``, such as
            ``sparkdl checkpoints --export`` writes. The checksum of a file lies beside it, in
            ``<path>.sha256``; where there is none, only the file's structure is checked.
        module: a module built like the one that was trained; nothing is changed if it does not fit.

    Raises:
        ConfigError: if there is no complete checkpoint, it cannot be read, or is damaged.
        ModelError: naming the parameters and buffers that do not fit.
    """
    with _weights(path) as (file, rows, identity):
        saved = _with_aliases({**load_file(file), **rows()}, module)
        _check_fit(path, saved, module)
        try:
            module.load_state_dict(saved, strict=False)
        except RuntimeError as error:  # rows of embedding variables are checked when they are taken over
            raise ModelError(
                f"checkpoint {path} does not fit {type(module).__name__}: {error}", code="model-weights"
            ) from error
        mark(module, identity)


def read_point(path: Path) -> ResumePoint:
    """Read the state from which a run goes on.

    ConfigError if there is no complete checkpoint, it has weights only, cannot be read, or is damaged.
    """
    with _reading(path) as checkpoint:
        if TRAINING not in checkpoint.mark.digests:
            raise ConfigError(
                f"checkpoint {path} holds weights only; a run cannot go on from it", code="config-resume"
            )
        checkpoint.verify(WEIGHTS)
        with checkpoint.verified(TRAINING) as file:
            meta, arrays = _read_training(file)
        point = ResumePoint.from_arrays(meta, arrays, checkpoint.states())
        base = Base(point.state.iteration, checkpoint.mark.seal)
        return replace(point, source=base, identity=checkpoint.mark.identity)


def read_told(path: Path) -> Mapping[str, Any]:
    """Read what a checkpoint tells beside tensors, as states of hooks; errors as of :func:`read_point`."""
    with _reading(path) as checkpoint, checkpoint.verified(TRAINING) as file:
        with safe_open(file, "numpy") as opened:
            told: Mapping[str, Any] = json.loads(opened.metadata()["sparkdl"])
        return told


def export_weights(path: Path, file: str) -> None:
    """Write a checkpoint's state_dict to a local safetensors file, with all rows of embedding variables.

    Errors are as of :func:`load_weights`; ConfigError, too, if the file cannot be written.
    """
    with _weights(path) as (own, rows, _):
        try:
            if more := rows():
                with safe_open(own, "pt") as opened:
                    metadata = opened.metadata()
                save_file({**load_file(own), **more}, file, metadata=metadata)
            else:
                shutil.copyfile(own, file)
        except OSError as error:
            raise ConfigError(f"cannot write {file}: {error}") from error


class Opened:
    """One checkpoint: its mark, and its files, checked before they are used.

    ``digests`` are the sha256 of its files by name if it has no mark yet.
    """

    def __init__(self, path: Path, digests: Mapping[str, str] | None = None) -> None:
        self._store = CheckpointStore(path)
        self._where = self._store.outside(self._store.root)
        if digests is None:
            self.mark = Mark.parse(self._where, self._store.read(self._full(STATE)))
        else:
            self.mark = Mark({}, {}, digests)

    def _full(self, name: str) -> str:
        return join(self._store.root, name)

    def links(self) -> list[Opened]:
        """Return the checkpoints that have this one's rows of embedding variables, itself last.

        Raises ConfigError if one of them is missing, damaged, or not what it was.
        """
        found = [self]
        while (base := found[-1].mark.base) is not None:
            path = join(posixpath.dirname(self._store.root.rstrip("/")), name_of(base.iteration))
            where = self._store.outside(path)
            try:
                link = Opened(where)
            except FileNotFoundError as error:
                raise damaged(self._where, where, "its rows are needed, and it is not there") from error
            if link.mark.seal != base.seal:
                raise damaged(self._where, where, "its rows are needed, and it is another checkpoint now")
            found.append(link)
        return found[::-1]

    def layers(self) -> list[list[Callable[[], AbstractContextManager[str]]]]:
        """Return what gives the local path of each shard's file, by layer; the newest layer last."""
        return [[partial(self.verified, name) for name in names] for names in self.mark.layers]

    def states(self) -> ShardStates:
        """Return what stays with the shards."""
        layers: list[ShardStates] = []
        for link in self.links():
            for names in link.mark.layers:
                layers = [rows_only(layer) for layer in layers]
                layers.append([link.decoded(name) for name in names])
        return complete(layers)

    def decoded(self, name: str) -> list[bytes]:
        """Return the frames of a shard's file."""
        with self.verified(name) as file, open(file, "rb") as data:
            return shard_files.decode(data.read())

    def rows(self) -> dict[str, torch.Tensor]:
        """Return the rows that are with the shards, by name in a ``state_dict``."""
        if self.mark.format < ROWS_APART:
            return {}
        tensors: dict[str, torch.Tensor] = {}
        for name, entries in joined_rows(unpacked(rows_only(self.states()))).items():
            prefix = f"{name}." if name else ""
            tensors[f"{prefix}ids"] = torch.from_numpy(entries.ids[entries.admitted])
            tensors[f"{prefix}rows"] = torch.from_numpy(np.array(entries.columns[ROW]))
        return tensors

    def verify(self, name: str) -> None:
        """Compare a file's checksum."""
        self._compare(name, self._store.digest(self._full(name)))

    @contextmanager
    def verified(self, name: str) -> Iterator[str]:
        """Give a local path of a file whose checksum has been compared."""
        with self._store.on_disk(self._full(name)) as file:
            self._compare(name, shard_files.digest_of(file))
            yield file

    def _compare(self, name: str, found: str) -> None:
        if found != self.mark.digests[name]:
            raise damaged(self._where, name)


@contextmanager
def _weights(path: Path) -> Iterator[tuple[str, Callable[[], dict[str, torch.Tensor]], Identity | None]]:
    """Give a local path of the weights of a checkpoint or a file, what gives further rows, whose they are."""
    if exported.is_exported(path):
        with _explained(path), exported.verified(path) as file:
            yield file, dict, None
    else:
        with _reading(path) as checkpoint, checkpoint.verified(WEIGHTS) as file:
            yield file, checkpoint.rows, checkpoint.mark.identity


@contextmanager
def _reading(path: Path) -> Iterator[Opened]:
    """Open a checkpoint, and name it in what goes wrong."""
    with _explained(path):
        yield Opened(path)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Name a checkpoint in what goes wrong."""
    try:
        yield
    except (ConfigError, ModelError):
        raise
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} is not a complete checkpoint ({error}); latest(folder) finds the newest of a folder",
            code="config-resume",
        ) from error
    except (OSError, *_UNREADABLE) as error:
        raise ConfigError(
            f"checkpoint {path} cannot be read: {error!r:.500}", code="config-resume"
        ) from error


def _read_training(file: str) -> tuple[Mapping[str, Any], dict[str, Array]]:
    with safe_open(file, "numpy") as opened:
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        return json.loads(opened.metadata()["sparkdl"]), arrays


def _with_aliases(saved: dict[str, torch.Tensor], module: nn.Module) -> dict[str, torch.Tensor]:
    """Return tensors with the rows of embedding variables under all names that a module has for them."""
    first: dict[int, str] = {}
    for name, part in module.named_modules(remove_duplicate=False):
        if isinstance(part, EmbeddingVariable):
            other = first.setdefault(id(part), name)
            for own in EmbeddingVariable.SAVED:
                if other != name and f"{other}.{own}" in saved:
                    saved.setdefault(f"{name}.{own}", saved[f"{other}.{own}"])
    return saved


def _check_fit(path: Path, saved: Mapping[str, torch.Tensor], module: nn.Module) -> None:
    own = {n: t for n, t in module.state_dict().items() if isinstance(t, torch.Tensor)}
    keyed = row_names(module)
    covered = {place(n, t) for n, t in own.items() if n in saved}
    problems = [f"{n} is missing" for n, t in own.items() if place(n, t) not in covered]
    problems += [f"{n} is not in the module" for n in saved if n not in own]
    problems += [
        f"{n} has shape {tuple(t.shape)} there and {tuple(own[n].shape)} in the module"
        for n, t in saved.items()
        if n in own and t.shape != own[n].shape and n not in keyed
    ]
    if problems:
        some = "; ".join(problems[:8]) + ("; ..." if len(problems) > 8 else "")
        raise ModelError(
            f"checkpoint {path} does not fit {type(module).__name__}: {some}. "
            "Build the module with the arguments that it was trained with",
            code="model-weights",
        )
