"""Where code is now that files of earlier releases name by its old place."""

from __future__ import annotations

_MODELS = (
    "anomaly arguments autoencoder convlstm deepfm dlrm gru4rec inception knrm lenet mlp nbeats neuralcf "
    "parts recurrent resnet seq2seq ssd tcn textcnn transformer vgg wide_and_deep"
)

MOVED = {f"sparkdl.nn.{name}": f"sparkdl.nn.models.{name}" for name in _MODELS.split()} | {
    "sparkdl.allreduce.codec": "sparkdl.codec",
    "sparkdl.nn.source": "sparkdl.nn.saved.source",
    "sparkdl.summary.timeline": "sparkdl.train.hooks.timeline",
    "sparkdl.train.callbacks": "sparkdl.train.hooks.callbacks",
    "sparkdl.train.checkpointing": "sparkdl.train.hooks.checkpoint",
    "sparkdl.train.progress": "sparkdl.train.hooks.progress",
}
"""Modules by the place that they had."""

RENAMED = {"sparkdl.train.drop:Drop": "sparkdl.train.stragglers:DropStragglers"}
"""Classes by the path that they had."""

OPTIONS = {"num_slices": "num_shards"}
"""Options of a Trainer by the name that they had."""


def current(path: str) -> str:
    """Return an import path such as ``package.module:Class`` with the place that its module has now.

    It is a matter of names alone: whether the path may be imported is judged afterwards.
    """
    path = RENAMED.get(path, path)
    module, colon, name = path.partition(":")
    return f"{MOVED.get(module, module)}{colon}{name}"
