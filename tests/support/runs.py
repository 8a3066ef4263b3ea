"""Runs without Spark: what a fit tells its hooks, played back."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as nnf

from sparkdl.data.columns import ColumnPlan, TablePlan, structure_of
from sparkdl.nn.objective import LossObjective
from sparkdl.nn.parameters import layout_of
from sparkdl.optim import optimizer_spec
from sparkdl.train.history import History
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.state import TrainState


class FakeRun(SimpleNamespace):
    """Looks like :class:`sparkdl.train.run.Run` to hooks that only read."""

    def __init__(
        self,
        steps=4,
        module=None,
        features=None,
        transform=None,
        name="digits",
        optimizer=None,
        loss=nnf.cross_entropy,
        **options,
    ):
        module = module or nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        features = torch.ones(2, 3).numpy() if features is None else features
        plan = structure_of(features, "features")
        super().__init__(
            name=name,
            steps=steps,
            module=module,
            config=TrainConfig(**options),
            optimizer=optimizer_spec(optimizer or partial(torch.optim.Adam, lr=1e-3), module)[0],
            objective=LossObjective(loss),
            layout=layout_of(module),
            history=History(),
            previous=TrainState(),
            state=TrainState(),
            outcome=None,
            scores={},
            stopped="",
            error=None,
            monitored="",
            data=SimpleNamespace(
                peek=lambda: plan.disassemble(features),
                plan=TablePlan(
                    features=plan,
                    label=structure_of(None, "label"),
                    weighted=False,
                    columns=tuple(ColumnPlan(key, key.removeprefix("features_")) for key in plan.keys),
                ),
                feature_columns=tuple(key.removeprefix("features_") for key in plan.keys),
                transform=transform,
                collate=None,
            ),
        )

    def trained_module(self, snapshot=None):
        return self.module

    def averaged(self):
        return None

    def parameters(self, snapshot=None):
        return {name: p.detach().numpy() for name, p in self.module.named_parameters()}

    def gradients(self):
        return {name: 0 * p.detach().numpy() + 1 for name, p in self.module.named_parameters()}

    # -- what the Trainer does ------------------------------------------------------------------

    def train(self, *hooks, iterations=4, validate=True, **row):
        """Run a whole fit past the hooks; validates at the end of each epoch."""
        for hook in hooks:
            hook.on_train_begin(self)
        try:
            for _ in range(iterations):
                self.iterate(*hooks, validate=validate, **row)
        except BaseException as error:
            self.error = error
            raise
        finally:
            for hook in hooks:
                hook.on_train_end(self)

    def iterate(self, *hooks, validate=True, tasks=(), **row):
        """Play one iteration of half a second over ten samples."""
        if self.state.step == 0:
            for hook in hooks:
                hook.on_epoch_begin(self)
        for hook in hooks:
            hook.on_iteration_begin(self)
        n = self.state.iteration + 1
        loss = row.get("loss", 1 / n)
        self.previous, self.state = self.state, self.state.advance(self.steps, 10, loss, 0.5)
        self.outcome = SimpleNamespace(tasks=list(tasks))
        found = {"epoch": self.previous.epoch + 1, "iteration": n, "loss": loss, "samples": 10, "lr": 0.1}
        found |= {"seconds": 0.5, "phases": {"compute": 0.3, "shuffle": 0.1}, "bytes": {"weights": 100}}
        self.history.append(found | row)
        for hook in hooks:
            hook.on_iteration_end(self)
        if self.state.step == 0:
            if validate:
                self.validate({"accuracy": 1 - 1 / (n + 1)}, *hooks)
            for hook in hooks:
                hook.on_epoch_end(self)

    def validate(self, scores, *hooks, name="val"):
        """Play a validation."""
        for hook in hooks:
            hook.on_validation_begin(self, name)
        self.state = self.state.validated(next(iter(scores.values())), higher_is_better=True)
        self.monitored = f"{name}/{next(iter(scores))}"
        self.scores |= {f"{name}/{metric}": value for metric, value in scores.items()}
        self.history.add_scores(self.state.iteration, self.previous.epoch + 1, name, scores)
        for hook in hooks:
            hook.on_validation_end(self, name, scores)
