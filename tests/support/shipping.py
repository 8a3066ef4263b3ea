"""A module shipped to the executors without a Trainer, for tests of single tasks."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from sparkdl.access import Access, access_to
from sparkdl.access.base import Published
from sparkdl.allreduce.cluster import Cluster
from sparkdl.allreduce.state import Weights
from sparkdl.compute.spec import FitSpec
from sparkdl.compute.worker import FitRef
from sparkdl.nn import serialize
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.numerics import Numerics
from sparkdl.nn.objective import LossObjective, StepObjective
from sparkdl.nn.parameters import layout_of


def fit_spec(module, data, loss=None, step=None):
    """Return the fixed part of a fit that only looks at a module; ``data`` gives the structure."""
    return FitSpec(
        module=module,
        objective=LossObjective(loss or nn.MSELoss()) if step is None else StepObjective(step),
        rule=None,
        combine=None,
        averaging=False,
        layout=layout_of(module),
        features=data.plan.features,
        label=data.plan.label,
        weighted=data.plan.weighted,
        transform=data.transform,
        seed=0,
        shuffle=True,
        micro_batch_size=None,
        threads=1,
        numerics=Numerics(),
    )


@dataclass
class Shipped:
    access: Access
    fit: FitRef
    sent: Published
    weights: object


@contextmanager
def ship(spark, spec):
    """Broadcast the fixed part of a fit and the module's weights."""
    access = access_to(spark)
    shipped = serialize.dumps(spec, "the setup")
    first = FlatModule(serialize.loads(shipped).module, spec.layout)
    sent = access.send(shipped)
    cluster = Cluster(access)
    weights = Weights(cluster, first.params.detach().numpy(), first.buffers(), first.counters()).publish()
    fit = FitRef(uuid.uuid4().hex, sent.ref)
    try:
        yield Shipped(access, fit, sent, weights)
    finally:
        weights.release()
        sent.release()


class Classifier(nn.Module):
    """Behaves differently in training and evaluation mode."""

    def __init__(self, classes=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(8, classes)
        generator = torch.Generator().manual_seed(0)
        for tensor in (*self.parameters(), self.body[1].running_mean):
            tensor.data.copy_(torch.randn(tensor.shape, generator=generator))

    def forward(self, x):
        return self.head(self.body(x))
