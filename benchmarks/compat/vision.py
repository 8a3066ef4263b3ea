"""Models of torchvision with random weights: classification, segmentation, video."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from compat.compare import ROWS, Entry, Program
from sparkdl.nn.batch import Batch

_SIZES = {"inception": 128, "vit_b_32": 32, "vit_l_32": 32, "vit_h_14": 28, "swin": 32, "maxvit": 224}
_LARGE = 30_000_000


def models() -> Iterator[Entry]:
    """Return an entry of each architecture that is small enough."""
    try:
        found = importlib.import_module("torchvision.models")
    except ImportError:
        return
    for kind, module in (("class", found), ("segment", found.segmentation), ("video", found.video)):
        for name in found.list_models(module=module):
            yield Entry("torchvision", name, partial(_program, kind, name), (torch.float32, torch.float64))


def _program(kind: str, name: str, dtype: torch.dtype) -> Program:
    found = importlib.import_module("torchvision.models")
    options: dict[str, Any] = {"weights": None, "num_classes": 3}
    if kind == "segment":
        options["weights_backbone"] = None
    size = next(iter(found.get_model_weights(name))).meta["num_params"]
    if size > _LARGE:
        raise ValueError(f"{size:,} parameters: too many for this table")
    torch.manual_seed(0)
    model = found.get_model(name, **options)
    draw = np.random.default_rng(5)
    side = next((n for prefix, n in _SIZES.items() if name.startswith(prefix)), 32)
    shape = (ROWS, 3, 4, 32, 32) if kind == "video" else (ROWS, 3, side, side)
    features = draw.normal(size=shape).astype(np.float64 if dtype == torch.float64 else np.float32)
    label = draw.integers(3, size=(ROWS, side, side) if kind == "segment" else ROWS)
    optimizer = (torch.optim.SGD, {"lr": 0.005, "momentum": 0.9})
    return Program(model.to(dtype), features, label, _compute, {"step": _compute}, optimizer)


def _compute(module: nn.Module, batch: Batch) -> torch.Tensor:
    output = module(batch.inputs)
    outputs = list(output.values()) if isinstance(output, dict) else [output]
    outputs = list(output) if isinstance(output, tuple) else outputs
    return sum(nn.functional.cross_entropy(one, batch.label) for one in outputs)
