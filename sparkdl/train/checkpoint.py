"""Checkpoints on disk: a folder per checkpoint, complete or not there.

::

    path/iteration-00000123/model.safetensors      parameters and buffers, under their state_dict names
                            training.safetensors   what the run needs to go on: see ResumePoint
                            state.json             format, sparkdl version, TrainState, scores, checksums

``state.json`` is the mark of a complete checkpoint: it is written last and deleted first. In a local
folder a checkpoint is written beside its place and renamed, so that it appears at once. The newest one
is the one with the largest number; times of files are not asked. No file is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import posixpath
import re
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file
from torch import nn

from sparkdl import __version__
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.weights import place, unique_tensors
from sparkdl.train.resume import ResumePoint
from sparkdl.train.state import TrainState

FORMAT = 1
WEIGHTS = "model.safetensors"
TRAINING = "training.safetensors"
STATE = "state.json"
_COMPLETE = re.compile(r"iteration-(\d+)")
_DRAFT = re.compile(r"\.iteration-\d+\.[0-9a-f]{32}")

Path = str | os.PathLike[str]


class CheckpointFolder:
    """The checkpoints of one run, in a local or remote folder.

    Args:
        path: folder, or URL of a folder that fsspec can open.

    Raises:
        ConfigError: if the URL cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._fs, self._root = _open(path)

    def create(self) -> None:
        """Make the folder if there is none, and remove what a crash has left half-written.

        Raises:
            ConfigError: if the folder cannot be made.
        """
        try:
            self._fs.makedirs(self._root, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the checkpoint folder {self._root}: {error}") from error
        complete = set(self.complete().values())
        for name in self._names():
            leftover = _COMPLETE.fullmatch(name) and self._full(name) not in complete
            if leftover or _DRAFT.fullmatch(name):
                self._fs.rm(self._full(name), recursive=True)

    def complete(self) -> dict[int, str]:
        """Return the complete checkpoints, oldest first, by number of iterations."""
        found = {}
        for name in self._names():
            match = _COMPLETE.fullmatch(name)
            if match and self._fs.exists(posixpath.join(self._full(name), STATE)):
                found[int(match[1])] = self._full(name)
        return dict(sorted(found.items()))

    def latest(self) -> str | None:
        """Return the newest complete checkpoint, ``None`` if there is none."""
        complete = list(self.complete().values())
        return self._outside(complete[-1]) if complete else None

    def save(
        self,
        module: nn.Module,
        state: TrainState,
        scores: Mapping[str, float],
        point: ResumePoint | None = None,
    ) -> str:
        """Write a checkpoint and return its path.

        Args:
            module: module with the weights to write.
            state: where the run is.
            scores: value by metric.
            point: what the run needs to go on; without it the checkpoint is for inference only.

        Raises:
            ConfigError: if the module's state_dict holds something other than tensors.
            OSError: if the files cannot be written.
        """
        final = self._full(f"iteration-{state.iteration:08d}")
        if isinstance(self._fs, LocalFileSystem):
            draft = self._full(f".{posixpath.basename(final)}.{uuid.uuid4().hex}")
            os.mkdir(draft)
            try:
                _write(draft, module, state, scores, point)
                os.rename(draft, final)
            except BaseException:
                self._fs.rm(draft, recursive=True)
                raise
            _sync(self._root)
        else:
            with tempfile.TemporaryDirectory() as draft:
                _write(draft, module, state, scores, point)
                self._fs.makedirs(final, exist_ok=True)
                for name in sorted(os.listdir(draft), key=lambda name: name == STATE):
                    self._fs.put_file(os.path.join(draft, name), posixpath.join(final, name))
        return self._outside(final)

    def prune(self, keep: int) -> None:
        """Delete all but the newest complete checkpoints."""
        for path in list(self.complete().values())[:-keep]:
            self._fs.rm_file(posixpath.join(path, STATE))
            self._fs.rm(path, recursive=True)

    def describe(self, path: str, *, verify: bool) -> dict[str, Any]:
        """Return iteration, state, scores, size and problem (empty if none is found) of a checkpoint.

        Args:
            path: one of :meth:`complete`.
            verify: whether to read all files and compare their checksums.
        """
        iteration = int(path.rstrip("/").rpartition("-")[2])
        row: dict[str, Any] = {"iteration": iteration, "path": self._outside(path), "verified": verify}
        row |= {"state": {}, "scores": {}, "bytes": 0, "problem": ""}
        try:
            mark = json.loads(self._fs.cat_file(posixpath.join(path, STATE)))
            row |= {"state": mark["state"], "scores": mark["scores"]}
            row["bytes"] = sum(self._fs.size(posixpath.join(path, name)) for name in mark["sha256"])
            damaged = [
                n for n, digest in mark["sha256"].items() if verify and self._digest(path, n) != digest
            ]
            row["problem"] = f"damaged: {', '.join(damaged)}" if damaged else ""
        except (OSError, ValueError, KeyError, TypeError) as error:
            row["problem"] = f"unreadable: {error!r}"
        return row

    def _digest(self, path: str, name: str) -> str:
        with self._fs.open(posixpath.join(path, name), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def export(self, path: str, file: str) -> None:
        """Copy a checkpoint's state_dict to a local safetensors file.

        Raises:
            ConfigError: if it is damaged, or the file cannot be written.
        """
        problem = self.describe(path, verify=True)["problem"]
        if problem:
            raise ConfigError(f"checkpoint {self._outside(path)} is {problem}")
        try:
            self._fs.get_file(posixpath.join(path, WEIGHTS), file)
        except OSError as error:
            raise ConfigError(f"cannot write {file}: {error}") from error

    def set_aside(self, path: str) -> None:
        """Rename a damaged checkpoint, so that it is neither found nor lost."""
        name = posixpath.basename(path.rstrip("/"))
        self._fs.mv(self._full(name), self._full(f"damaged-{name}"), recursive=True)

    def _names(self) -> list[str]:
        self._fs.invalidate_cache()
        try:
            entries = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        return [posixpath.basename(entry.rstrip("/")) for entry in entries]

    def _full(self, name: str) -> str:
        return posixpath.join(self._root, name)

    def _outside(self, path: str) -> str:
        return path if isinstance(self._fs, LocalFileSystem) else str(self._fs.unstrip_protocol(path))


def latest(path: Path) -> str | None:
    """Return the path of a folder's newest complete checkpoint, ``None`` if there is none.

    Args:
        path: what :class:`sparkdl.train.callbacks.Checkpoint` was given.
    """
    return CheckpointFolder(path).latest()


def load_weights(path: Path, module: nn.Module) -> None:
    """Copy the weights and buffers of a checkpoint into a module.

    Args:
        path: one checkpoint, such as ``latest("runs/lenet")`` returns.
        module: a module built like the one that was trained; nothing is changed if it does not fit.

    Raises:
        ConfigError: if there is no complete checkpoint, or it cannot be read.
        ModelError: naming the parameters and buffers that do not fit.
    """
    fs, root = _open(path)
    try:
        mark = json.loads(fs.cat_file(posixpath.join(root, STATE)))
        _check_format(path, mark)
        if isinstance(fs, LocalFileSystem):
            saved = load_file(posixpath.join(root, WEIGHTS))
        else:
            with tempfile.TemporaryDirectory() as folder:
                local = os.path.join(folder, WEIGHTS)
                fs.get_file(posixpath.join(root, WEIGHTS), local)
                saved = load_file(local)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} is not a complete checkpoint ({error}); latest(folder) finds the newest of a folder"
        ) from error
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"checkpoint {path} cannot be read: {error!r}") from error
    _check_fit(path, saved, module)
    module.load_state_dict(saved, strict=False)


def read_point(path: Path) -> ResumePoint:
    """Read what a run needs to go on.

    Args:
        path: one checkpoint.

    Raises:
        ConfigError: if it is incomplete, damaged, of a newer format, or holds weights only.
    """
    fs, root = _open(path)
    with tempfile.TemporaryDirectory() as folder:
        try:
            mark = json.loads(fs.cat_file(posixpath.join(root, STATE)))
            _check_format(path, mark)
            if TRAINING not in mark["sha256"]:
                raise ConfigError(f"checkpoint {path} holds weights only; a run cannot go on from it")
            for name in mark["sha256"]:
                fs.get_file(posixpath.join(root, name), os.path.join(folder, name))
                if _digest(os.path.join(folder, name)) != mark["sha256"][name]:
                    raise ConfigError(f"checkpoint {path} is damaged: {name} is not what was written")
            with safe_open(os.path.join(folder, TRAINING), "numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                meta = json.loads(file.metadata()["sparkdl"])
            return ResumePoint.from_arrays(meta, arrays)
        except FileNotFoundError as error:
            raise ConfigError(f"{path} is not a complete checkpoint ({error})") from error
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"checkpoint {path} cannot be read: {error!r}") from error


def _check_format(path: Path, mark: Mapping[str, Any]) -> None:
    if mark["format"] > FORMAT:
        raise ConfigError(
            f"checkpoint {path} has format {mark['format']}, written by sparkdl {mark['sparkdl']}; "
            f"this is sparkdl {__version__}, which reads formats up to {FORMAT}: install a newer one"
        )


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tensors_of(module: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return what :func:`sparkdl.nn.weights.unique_tensors` does, as safetensors can write it.

    Raises:
        ConfigError: if the state_dict holds something that cannot be saved as plain tensors.
    """
    found, aliases = unique_tensors(module)
    kept: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, value in found.items():
        storage = value.untyped_storage().data_ptr()
        kept[name] = (value.clone() if storage in storages else value).contiguous()
        storages.add(storage)
    return kept, aliases


def _check_fit(path: Path, saved: Mapping[str, torch.Tensor], module: nn.Module) -> None:
    own = {n: t for n, t in module.state_dict().items() if isinstance(t, torch.Tensor)}
    covered = {place(n, t) for n, t in own.items() if n in saved}
    problems = [f"{n} is missing" for n, t in own.items() if place(n, t) not in covered]
    problems += [f"{n} is not in the module" for n in saved if n not in own]
    problems += [
        f"{n} has shape {tuple(t.shape)} there and {tuple(own[n].shape)} in the module"
        for n, t in saved.items()
        if n in own and t.shape != own[n].shape
    ]
    if problems:
        some = "; ".join(problems[:8]) + ("; ..." if len(problems) > 8 else "")
        raise ModelError(
            f"checkpoint {path} does not fit {type(module).__name__}: {some}. "
            "Build the module with the arguments that it was trained with"
        )


def _open(path: Path) -> tuple[Any, str]:
    text = os.fspath(path)
    try:
        fs, root = url_to_fs(text)
    except (ImportError, ValueError, OSError) as error:
        raise ConfigError(f"cannot open {text}: {error}") from error
    return fs, root.rstrip("/") or "/"


def _write(
    folder: str,
    module: nn.Module,
    state: TrainState,
    scores: Mapping[str, float],
    point: ResumePoint | None,
) -> None:
    """Write all files, and see them to the disk before anything is renamed."""
    tensors, aliases = tensors_of(module)
    weights = os.path.join(folder, WEIGHTS)
    save_file(tensors, weights, metadata={"format": "pt", **aliases})
    _sync(weights)
    files = [weights]
    if point is not None:
        meta, arrays = point.to_arrays()
        files.append(os.path.join(folder, TRAINING))
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        save_arrays(contiguous, files[-1], metadata={"sparkdl": json.dumps(meta)})
        _sync(files[-1])
    mark = {
        "format": FORMAT,
        "sparkdl": __version__,
        "state": {name: _plain(value) for name, value in asdict(state).items()},
        "scores": {name: _plain(value) for name, value in scores.items()},
        "sha256": {os.path.basename(file): _digest(file) for file in files},
    }
    with open(os.path.join(folder, STATE), "w", encoding="utf-8") as file:
        json.dump(mark, file, indent=1, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())


def _plain(value: float) -> float | str:
    """Return a number as JSON has it: those that are not finite as a string that float() reads."""
    return value if math.isfinite(value) else str(float(value))


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
