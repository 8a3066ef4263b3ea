"""Models of torchvision with random weights: classification, segmentation, video.

Of those with many parameters each stage keeps its first block, and a wide classifier is narrow: what a block
computes is tried, not how often it stands there.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from compat.compare import ROWS, Entry, Program
from sparkdl.nn.batch import Batch

_SIDES = {"alexnet": 64, "inception": 299, "vit_h_14": 28, "maxvit": 224, "s3d": 224, "mvit": 64}
_FRAMES = {"s3d": 13}
_LARGE = 30_000_000
_NARROW = 32
_BLOCKS = ("Block", "BlockV2", "Bottleneck", "MBConv")


def models() -> Iterator[Entry]:
    """Return an entry of each architecture that is small enough."""
    try:
        found = importlib.import_module("torchvision.models")
    except ImportError:
        return
    for kind, module in (("class", found), ("segment", found.segmentation), ("video", found.video)):
        for name in found.list_models(module=module):
            size = next(iter(found.get_model_weights(name))).meta["num_params"]
            called = name if size <= _LARGE else f"{name}, one block a stage"
            yield Entry("torchvision", called, partial(_program, kind, name), (torch.float32, torch.float64))


def _program(kind: str, name: str, dtype: torch.dtype) -> Program:
    found = importlib.import_module("torchvision.models")
    side, frames = _of(_SIDES, name, 32), _of(_FRAMES, name, 4)
    options: dict[str, Any] = {"weights": None, "num_classes": 3}
    if kind == "segment":
        options["weights_backbone"] = None
    if name.startswith("vit"):
        options["image_size"] = side
    torch.manual_seed(0)
    with _small_clips(found.video.mvit, side, frames):
        model = found.get_model(name, **options)
    if next(iter(found.get_model_weights(name))).meta["num_params"] > _LARGE:
        _cut(model)
    draw = np.random.default_rng(5)
    shape = (ROWS, 3, frames, side, side) if kind == "video" else (ROWS, 3, side, side)
    features = draw.normal(size=shape).astype(np.float64 if dtype == torch.float64 else np.float32)
    label = draw.integers(3, size=(ROWS, side, side) if kind == "segment" else ROWS)
    optimizer = (torch.optim.SGD, {"lr": 0.005, "momentum": 0.9})
    return Program(model.to(dtype), features, label, _compute, {"step": _compute}, optimizer)


@contextmanager
def _small_clips(mvit: Any, side: int, frames: int) -> Iterator[None]:
    """Make multiscale transformers for small clips: their builders fix the size of Kinetics' clips."""
    original = mvit.MViT

    def small(*, spatial_size: Any, temporal_size: Any, **rest: Any) -> nn.Module:
        return original(spatial_size=(side, side), temporal_size=frames, **rest)

    with mock.patch.object(mvit, "MViT", small):
        yield


def _of(known: Mapping[str, int], name: str, other: int) -> int:
    return next((n for prefix, n in known.items() if name.startswith(prefix)), other)


def _cut(model: nn.Module) -> None:
    """Leave the first of blocks of one class, and few units in a classifier."""
    for module in model.modules():
        for name, child in module.named_children():
            if not isinstance(child, nn.Sequential):
                continue
            kinds = {type(block) for block in child}
            layers = [layer for layer in child if isinstance(layer, nn.Linear)]
            if len(child) > 1 and len(kinds) == 1 and kinds.pop().__name__.endswith(_BLOCKS):
                setattr(module, name, nn.Sequential(child[0]))
            elif len(layers) > 1:
                for one, following in pairwise(layers):
                    one.weight = nn.Parameter(one.weight[:_NARROW].detach().clone())
                    one.bias = nn.Parameter(one.bias[:_NARROW].detach().clone())
                    following.weight = nn.Parameter(following.weight[:, :_NARROW].detach().clone())


def _compute(module: nn.Module, batch: Batch) -> torch.Tensor:
    output = module(batch.inputs)
    outputs = list(output.values()) if isinstance(output, dict) else [output]
    outputs = list(output) if isinstance(output, tuple) else outputs
    return sum(nn.functional.cross_entropy(one, batch.label) for one in outputs)
