"""Checkpoints on disk: a folder per checkpoint, complete or not there.

::

    path/iteration-00000123/model.safetensors      parameters and buffers, under their state_dict names
                            training.safetensors   the state to go on from: see ResumePoint
                            shard-*.safetensors    optimizer state, averaged weights, rows of embedding
                                                   variables, by shard
                            below*.safetensors     further rows, if the executors have written them
                            state.json             format, versions, module, TrainState, scores, checksums
    path/.running.json                             the run that writes here now

Rows of embedding variables may be changes to those of another checkpoint beside this one, its *base*, which
``state.json`` names; it has a base, or all rows.

``state.json`` is the mark of a complete checkpoint: it is written last and deleted first. In a local
folder, and on Hadoop's file systems, a checkpoint is written beside its place and renamed, so that it
appears at once. The newest one is the one with the largest number; times of files are not asked. No
file is unpickled, none is read before its checksum is compared, and nothing is deleted but files with
the names above.
"""

from sparkdl.train.checkpoint.contents import CheckpointFiles, tensors_of
from sparkdl.train.checkpoint.folder import CheckpointFolder
from sparkdl.train.checkpoint.mark import DAMAGED, STATE, TRAINING, WEIGHTS
from sparkdl.train.checkpoint.reading import export_weights, latest, load_weights, read_point, read_told
from sparkdl.train.checkpoint.store import Path

__all__ = [
    "DAMAGED",
    "STATE",
    "TRAINING",
    "WEIGHTS",
    "CheckpointFiles",
    "CheckpointFolder",
    "Path",
    "export_weights",
    "latest",
    "load_weights",
    "read_point",
    "read_told",
    "tensors_of",
]
