"""The contents of a checkpoint: its files, and what ``state.json`` says of the run."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as save_arrays
from safetensors.torch import save as save_tensors
from torch import nn

from sparkdl._version import __version__
from sparkdl.allreduce import shard_files
from sparkdl.allreduce.shard_states import ShardStates
from sparkdl.nn.embedding import row_names
from sparkdl.saved.identity import KEY, identity_of
from sparkdl.saved.weights import unique_tensors
from sparkdl.train.checkpoint.mark import ROWS_APART, TRAINING, WEIGHTS
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.state import TrainState
from sparkdl.wire.frame import Array

_WITHOUT_ROWS = 2  # format of checkpoints without embedding variables; earlier releases read it


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """What goes into a checkpoint, apart from the run: it may be written while the run goes on."""

    iteration: int  # completed iterations
    tensors: dict[str, torch.Tensor]  # the state_dict, as safetensors can write it
    aliases: dict[str, str]  # names that were left out there, and what stands for them
    # values and arrays of :meth:`ResumePoint.to_arrays`, ``None`` for weights only
    training: tuple[dict[str, Any], dict[str, Array]] | None
    shards: ShardStates  # frames that stay with each shard, unless others write them
    mark: dict[str, Any]  # content of ``state.json``, without the checksums
    # completed iterations of the checkpoint that has the rows of embedding variables which this one does not
    # have, since they have not changed; 0 if it has all
    base: int = 0

    @classmethod
    def of(
        cls,
        module: nn.Module,
        state: TrainState,
        scores: Mapping[str, float],
        point: ResumePoint | None,
        base: int = 0,
    ) -> CheckpointFiles:
        """Collect the content of a checkpoint; without a ``point`` it is for inference only.

        With one, rows of embedding variables are with the shards, and those of the module do not count.
        Raises ConfigError if the module's state_dict holds something other than tensors.
        """
        rows = in_shards(module) if point is not None else frozenset()
        tensors, aliases = tensors_of(module, leave_out=rows)
        kind = type(module)
        mark = {
            "format": ROWS_APART if rows else _WITHOUT_ROWS,
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
        if (own := identity_of(module)) is not None:
            mark[KEY] = own.to_json()
        training = point.to_arrays() if point is not None else None
        return cls(state.iteration, tensors, aliases, training, point.states if point else [], mark, base)

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Iterate over names and contents of the files, so that one at a time is in memory."""
        yield WEIGHTS, save_tensors(self.tensors, metadata={"format": "pt", **self.aliases})
        if self.training is not None:
            meta, arrays = self.training
            in_order = {name: np.asarray(array, order="C") for name, array in arrays.items()}
            yield TRAINING, save_arrays(in_order, metadata={"sparkdl": json.dumps(meta)})
        for index, frames in enumerate(self.shards):
            yield shard_files.name_of(index, len(self.shards)), shard_files.encode(frames)


def in_shards(module: nn.Module) -> frozenset[str]:
    """Return the names in a ``state_dict`` that a checkpoint with a point has in the files of its shards."""
    return frozenset(name for name in row_names(module) if name.rpartition(".")[2] != "seed")


def _version_of_pyspark() -> str:
    """Return it without importing the package, which reading checkpoints does not need."""
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:  # a distribution that brings it on its own path
        return ""


def _plain(value: float) -> float | str:
    """Return a number as JSON has it: those that are not finite as a string that float() reads."""
    return value if math.isfinite(value) else str(float(value))


def tensors_of(
    module: nn.Module, leave_out: Collection[str] = ()
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return what :func:`sparkdl.saved.weights.unique_tensors` does, as safetensors can write it.

    Raises ConfigError if the state_dict holds something that cannot be saved as plain tensors.
    """
    found, aliases = unique_tensors(module)
    written: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, value in found.items():
        if name in leave_out:
            continue
        storage = value.untyped_storage().data_ptr()
        written[name] = (value.clone() if storage in storages else value).contiguous()
        storages.add(storage)
    return written, aliases
