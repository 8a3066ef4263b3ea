"""Reading checkpoints: nothing is used before its checksum is compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from sparkdl.allreduce.kept import Kept
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.frame import Array
from sparkdl.nn.embedding import row_names
from sparkdl.nn.saved.weights import place
from sparkdl.train.checkpoint import exported, shard_files
from sparkdl.train.checkpoint.folder import CheckpointFolder
from sparkdl.train.checkpoint.mark import STATE, TRAINING, WEIGHTS, Mark, damaged
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.checkpoint.store import Path, Store, join

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
        path: what :class:`sparkdl.train.hooks.callbacks.Checkpoint` was given.
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
    with _weights(path) as file:
        saved = load_file(file)
        _check_fit(path, saved, module)
        try:
            module.load_state_dict(saved, strict=False)
        except RuntimeError as error:  # rows of embedding variables are checked when they are taken over
            raise ModelError(
                f"checkpoint {path} does not fit {type(module).__name__}: {error}", code="model-weights"
            ) from error


def read_point(path: Path) -> ResumePoint:
    """Read the state from which a run goes on.

    Args:
        path: one checkpoint.

    Raises:
        ConfigError: if it is incomplete, damaged (with the code ``"config-damaged"``), of a newer format,
            or holds weights only.
    """
    with _reading(path) as checkpoint:
        if TRAINING not in checkpoint.mark.digests:
            raise ConfigError(
                f"checkpoint {path} holds weights only; a run cannot go on from it", code="config-resume"
            )
        checkpoint.verify(WEIGHTS)
        with checkpoint.verified(TRAINING) as file:
            meta, arrays = _read_training(file)
        kept: Kept = []
        for name in checkpoint.mark.shards:
            with checkpoint.verified(name) as file, open(file, "rb") as data:
                kept.append(shard_files.decode(data.read()))
        return ResumePoint.from_arrays(meta, arrays, kept)


class _Checkpoint:
    """One checkpoint: its mark, and its files, checked before they are used."""

    def __init__(self, path: Path) -> None:
        self._store = Store(path)
        self._where = self._store.outside(self._store.root)
        self.mark = Mark.parse(self._where, self._store.read(self._full(STATE)))

    def _full(self, name: str) -> str:
        return join(self._store.root, name)

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
def _weights(path: Path) -> Iterator[str]:
    """Give a local path of the weights of a checkpoint, or of a file of weights."""
    if exported.is_exported(path):
        with _explained(path), exported.verified(path) as file:
            yield file
    else:
        with _reading(path) as checkpoint, checkpoint.verified(WEIGHTS) as file:
            yield file


@contextmanager
def _reading(path: Path) -> Iterator[_Checkpoint]:
    """Open a checkpoint, and name it in what goes wrong."""
    with _explained(path):
        yield _Checkpoint(path)


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


def _check_fit(path: Path, saved: Mapping[str, torch.Tensor], module: nn.Module) -> None:
    own = {n: t for n, t in module.state_dict().items() if isinstance(t, torch.Tensor)}
    kept = row_names(module)
    covered = {place(n, t) for n, t in own.items() if n in saved}
    problems = [f"{n} is missing" for n, t in own.items() if place(n, t) not in covered]
    problems += [f"{n} is not in the module" for n in saved if n not in own]
    problems += [
        f"{n} has shape {tuple(t.shape)} there and {tuple(own[n].shape)} in the module"
        for n, t in saved.items()
        if n in own and t.shape != own[n].shape and n not in kept
    ]
    if problems:
        some = "; ".join(problems[:8]) + ("; ..." if len(problems) > 8 else "")
        raise ModelError(
            f"checkpoint {path} does not fit {type(module).__name__}: {some}. "
            "Build the module with the arguments that it was trained with",
            code="model-weights",
        )
