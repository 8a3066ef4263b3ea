"""Checkpoints on disk: a folder per checkpoint, complete or not there.

::

    path/iteration-00000123/model.safetensors      parameters and buffers, under their state_dict names
                            training.safetensors   what the run needs to go on: see ResumePoint
                            slice-*.safetensors    optimizer state and averaged weights, by slice
                            state.json             format, versions, module, TrainState, scores, checksums

``state.json`` is the mark of a complete checkpoint: it is written last and deleted first. In a local
folder, and on Hadoop's file systems, a checkpoint is written beside its place and renamed, so that it
appears at once. The newest one is the one with the largest number; times of files are not asked. No
file is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import posixpath
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import numpy as np
import torch
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as save_arrays
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from torch import nn

from sparkdl import __version__
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.frame import Array
from sparkdl.nn.weights import place, unique_tensors
from sparkdl.train import slice_files
from sparkdl.train.hadoop import HadoopFileSystem
from sparkdl.train.resume import ResumePoint
from sparkdl.train.run import Kept
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
        self._local = isinstance(self._fs, LocalFileSystem)
        self._renames = self._local or isinstance(self._fs, HadoopFileSystem)

    @property
    def reached_by_executors(self) -> bool:
        """Whether tasks on other machines can write here too, as far as its kind tells."""
        return not self._renames and "memory" not in self._fs.protocol

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

    def check_writable(self) -> None:
        """Write a small file and delete it again.

        Raises:
            ConfigError: if that fails.
        """
        probe = self._full(f".iteration-00000000.{uuid.uuid4().hex}")
        try:
            self._put(json.dumps("can this be written?").encode(), probe)
            self._fs.rm_file(probe)
        except OSError as error:
            raise ConfigError(f"cannot write to the checkpoint folder {self._root}: {error}") from error

    def begin(self, iteration: int) -> str:
        """Return the path of a new folder for the files of a checkpoint.

        Raises:
            OSError: if it cannot be made.
        """
        name = f"iteration-{iteration:08d}"
        place = self._full(f".{name}.{uuid.uuid4().hex}" if self._renames else name)
        self._fs.makedirs(place, exist_ok=True)
        return self._outside(place)

    def finish(self, place: str, files: CheckpointFiles, digests: Mapping[str, str]) -> str:
        """Write what is still missing, the mark last, and return the checkpoint's path.

        Args:
            place: what :meth:`begin` has returned; deleted if this fails.
            files: what to write.
            digests: sha256 by name of the files that are there already.

        Raises:
            OSError: if the files cannot be written.
        """
        inside = self._inside(place)
        try:
            found = dict(digests)
            for name, data in files.contents():
                self._put(data, posixpath.join(inside, name))
                found[name] = hashlib.sha256(data).hexdigest()
            mark = json.dumps({**files.mark, "sha256": found}, indent=1, allow_nan=False)
            self._put(mark.encode(), posixpath.join(inside, STATE))
            final = self._full(f"iteration-{files.iteration:08d}")
            if self._renames:
                self._fs.mv(inside, final, recursive=True)
        except BaseException:
            self.discard(place)
            raise
        if self._local:
            _sync(self._root)
        return self._outside(final)

    def discard(self, place: str) -> None:
        """Delete what :meth:`begin` has made, as far as possible."""
        try:
            self._fs.rm(self._inside(place), recursive=True)
        except OSError:
            pass  # the next run's create() tries again

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
        files = CheckpointFiles.of(module, state, scores, point)
        return self.finish(self.begin(state.iteration), files, {})

    def _put(self, data: bytes, path: str) -> None:
        """Write a file, and see it to the disk if that is the driver's own."""
        if self._local:
            slice_files.write_synced(path, data)
        else:
            self._fs.pipe_file(path, data)

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
            raise ConfigError(f"checkpoint {self._outside(path)} is {problem}", code="config-resume")
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
        return path if self._local else str(self._fs.unstrip_protocol(path))

    def _inside(self, path: str) -> str:
        return str(self._fs._strip_protocol(path))


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
            f"{path} is not a complete checkpoint ({error}); latest(folder) finds the newest of a folder",
            code="config-resume",
        ) from error
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"checkpoint {path} cannot be read: {error!r}", code="config-resume") from error
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
                raise ConfigError(
                    f"checkpoint {path} holds weights only; a run cannot go on from it", code="config-resume"
                )
            for name in mark["sha256"]:
                fs.get_file(posixpath.join(root, name), os.path.join(folder, name))
                if _digest(os.path.join(folder, name)) != mark["sha256"][name]:
                    raise ConfigError(
                        f"checkpoint {path} is damaged: {name} is not what was written", code="config-resume"
                    )
            with safe_open(os.path.join(folder, TRAINING), "numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                meta = json.loads(file.metadata()["sparkdl"])
            kept: Kept = []
            for name in sorted(name for name in mark["sha256"] if name.startswith("slice-")):
                with open(os.path.join(folder, name), "rb") as data:
                    kept.append(slice_files.decode(data.read()))
            return ResumePoint.from_arrays(meta, arrays, kept)
        except FileNotFoundError as error:
            raise ConfigError(
                f"{path} is not a complete checkpoint ({error})", code="config-resume"
            ) from error
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"checkpoint {path} cannot be read: {error!r}", code="config-resume") from error


def _check_format(path: Path, mark: Mapping[str, Any]) -> None:
    if mark["format"] > FORMAT:
        raise ConfigError(
            f"checkpoint {path} has format {mark['format']}, written by sparkdl {mark['sparkdl']}; "
            f"this is sparkdl {__version__}, which reads formats up to {FORMAT}: install a newer one",
            code="config-resume",
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
            "Build the module with the arguments that it was trained with",
            code="model-weights",
        )


def _open(path: Path) -> tuple[Any, str]:
    """Open with fsspec, else with the Hadoop that Spark brings."""
    text = os.fspath(path)
    try:
        fs, root = url_to_fs(text)
    except (ImportError, ValueError, OSError) as error:
        if "://" not in text:
            raise ConfigError(f"cannot open {text}: {error}") from error
        try:
            fs, root = HadoopFileSystem(text), text
        except ConfigError as other:
            raise ConfigError(f"cannot open {text}: {error}; nor with Hadoop: {other}") from error
    return fs, root.rstrip("/") or "/"


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """What goes into a checkpoint, apart from the run: it may be written while the run goes on.

    Attributes:
        iteration: completed iterations.
        tensors: the state_dict, as safetensors can write it.
        aliases: names that were left out there, and what stands for them.
        training: values and arrays of :meth:`ResumePoint.to_arrays`, ``None`` for weights only.
        slices: frames that stay with each slice, unless others write them.
        mark: content of ``state.json``, without the checksums.
    """

    iteration: int
    tensors: dict[str, torch.Tensor]
    aliases: dict[str, str]
    training: tuple[dict[str, Any], dict[str, Array]] | None
    slices: Kept
    mark: dict[str, Any]

    @classmethod
    def of(
        cls, module: nn.Module, state: TrainState, scores: Mapping[str, float], point: ResumePoint | None
    ) -> CheckpointFiles:
        """Take down what a checkpoint is to hold.

        Raises:
            ConfigError: if the module's state_dict holds something other than tensors.
        """
        tensors, aliases = tensors_of(module)
        kind = type(module)
        mark = {
            "format": FORMAT,
            "sparkdl": __version__,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "pyspark": _version_of_pyspark(),
            },
            "module": f"{kind.__module__}.{kind.__qualname__}",
            "state": {name: _plain(value) for name, value in asdict(state).items()},
            "scores": {name: _plain(value) for name, value in scores.items()},
        }
        training = point.to_arrays() if point is not None else None
        return cls(state.iteration, tensors, aliases, training, point.kept if point else [], mark)

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Iterate over names and contents of the files, so that one at a time is in memory."""
        yield WEIGHTS, save_tensors(self.tensors, metadata={"format": "pt", **self.aliases})
        if self.training is not None:
            meta, arrays = self.training
            contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
            yield TRAINING, save_arrays(contiguous, metadata={"sparkdl": json.dumps(meta)})
        for index, frames in enumerate(self.slices):
            yield slice_files.name_of(index, len(self.slices)), slice_files.encode(frames)


def _version_of_pyspark() -> str:
    """Return it without importing the package, which reading checkpoints does not need."""
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:  # a distribution that brings it on its own path
        return ""


def _plain(value: float) -> float | str:
    """Return a number as JSON has it: those that are not finite as a string that float() reads."""
    return value if math.isfinite(value) else str(float(value))


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
