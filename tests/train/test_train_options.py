"""Every option of a training run against the same run in plain torch."""

from __future__ import annotations

import copy
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.data import as_dataset, digits, partitioned
from support.models import mlp
from support.reference import (
    Partition,
    assert_bit_equal,
    iteration_rows,
    plain,
    relative_error,
    threads,
)
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from sparkdl import Dataset, Trainer, session
from sparkdl.exceptions import ConfigError, DataError, ModelError, NonFiniteError
from sparkdl.optim import LAMB, LARS, LBFGS, ClipByNorm, ClipByValue, ParamGroup
from sparkdl.train import (
    EMA,
    SWA,
    Checkpoint,
    EarlyStopping,
    EveryEpoch,
    EveryIterations,
    Freeze,
    Hook,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MinLoss,
    PerIteration,
    Plateaued,
    Run,
    Snapshot,
    Unfreeze,
)

LOSS = nn.CrossEntropyLoss()
ADAM = partial(torch.optim.Adam, lr=1e-3)
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
PARTS = partitioned([200])
SPLIT = partitioned([90, 0, 110])


def trainer(module: nn.Module | None = None, optimizer: Any = ADAM, **options: Any) -> Trainer:
    options = {"batch_size": 60, "seed": 3, "end_when": MaxIteration(10), "progress": False} | options
    if "step" not in options:
        options.setdefault("loss", LOSS)
    return Trainer(module or mlp(), optimizer=optimizer, **options)


def reference(optimizer: Any = ADAM, parts: Any = PARTS, iterations: int = 10, **hooks: Any) -> nn.Module:
    with threads(2):
        return plain(mlp(), LOSS, optimizer, parts, 60, iterations, 3, **hooks)


@pytest.fixture
def data(spark: Any) -> Any:
    with as_dataset(spark, PARTS) as data:
        yield data


@pytest.fixture
def split(spark: Any) -> Any:
    with as_dataset(spark, SPLIT) as data:
        yield data


# -- clipping -----------------------------------------------------------------------------------


def _clip_layers(_: int, module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.utils.clip_grad_norm_([parameter], 0.05)


CLIPS = {
    "value": (ClipByValue(0.01), lambda _, m: nn.utils.clip_grad_value_(m.parameters(), 0.01)),
    "norm": (ClipByNorm(0.1), lambda _, m: nn.utils.clip_grad_norm_(m.parameters(), 0.1)),
    "layers": (ClipByNorm(0.05, per_layer=True), _clip_layers),
}


@pytest.mark.parametrize(("clip", "plainly"), CLIPS.values(), ids=CLIPS)
def test_clipping_is_torchs_to_the_bit_on_one_partition(data: Dataset, clip: Any, plainly: Any) -> None:
    result = trainer(optimizer=SGD, clip=clip).fit(data)
    assert_bit_equal(result.module, reference(SGD, on_backward=plainly))


@pytest.mark.parametrize(("clip", "plainly"), CLIPS.values(), ids=CLIPS)
def test_clipping_over_several_shards(split: Dataset, clip: Any, plainly: Any) -> None:
    result = trainer(optimizer=SGD, clip=clip, num_shards=3).fit(split)
    assert relative_error(result.module, reference(SGD, SPLIT, on_backward=plainly)) < 1e-6


def test_clipping_combines_with_an_optimizer_that_reduces(split: Dataset) -> None:
    lamb = partial(LAMB, lr=1e-2)
    result = trainer(optimizer=lamb, clip=ClipByNorm(0.1), num_shards=2).fit(split)
    expected = reference(lamb, SPLIT, on_backward=CLIPS["norm"][1])
    assert relative_error(result.module, expected) < 1e-5


# -- optimizers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    "optimizer", [partial(LARS, lr=1.0, weight_decay=1e-4), partial(LAMB, lr=1e-2, weight_decay=1e-2)]
)
def test_layerwise_optimizers(split: Dataset, optimizer: Any, shards: int) -> None:
    result = trainer(optimizer=optimizer, num_shards=shards).fit(split)
    assert relative_error(result.module, reference(optimizer, SPLIT)) < 1e-5


def test_lbfgs_on_the_full_batch(split: Dataset) -> None:
    result = trainer(optimizer=partial(LBFGS, lr=0.5), batch_size=200, num_shards=3).fit(split)
    x = torch.from_numpy(np.concatenate([p.x for p in SPLIT]))
    y = torch.from_numpy(np.concatenate([p.y for p in SPLIT]))
    module = mlp()
    steps = torch.optim.LBFGS(module.parameters(), lr=0.5, max_iter=1, history_size=10)

    def closure() -> torch.Tensor:
        steps.zero_grad()
        loss = LOSS(module(x), y)
        loss.backward()
        return loss

    for _ in range(10):
        steps.step(closure)
    assert relative_error(result.module, module) < 1e-4
    losses = result.history.column("loss")
    assert losses[-1] < 0.5 * losses[0]


def test_groups_have_hyper_parameters_of_their_own(data: Dataset) -> None:
    groups = [ParamGroup("*.bias", weight_decay=0.0, lr=1e-2)]
    adamw = partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)

    def grouped(parameters: Any) -> torch.optim.Optimizer:
        w1, b1, w2, b2 = parameters
        return adamw([{"params": [w1, w2]}, {"params": [b1, b2], "weight_decay": 0.0, "lr": 1e-2}])

    assert_bit_equal(trainer(optimizer=adamw, groups=groups).fit(data).module, reference(grouped))


def test_an_optimizer_per_part_of_the_module(data: Dataset) -> None:
    class Both:
        def __init__(self, parameters: Any) -> None:
            w1, b1, w2, b2 = parameters
            self.parts = [torch.optim.Adagrad([w1, b1], lr=0.01), SGD([w2, b2])]

        def zero_grad(self) -> None:
            for part in self.parts:
                part.zero_grad()

        def step(self) -> None:
            for part in self.parts:
                part.step()

    optimizers = {"0.*": partial(torch.optim.Adagrad, lr=0.01), "*": SGD}
    assert_bit_equal(trainer(optimizer=optimizers).fit(data).module, reference(Both))


class Items(nn.Module):
    """An embedding with row-sparse gradients, and a dense head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(40, 5, sparse=True)
        self.head = nn.Linear(5, 1)

    def forward(self, item: Any) -> Any:
        return torch.relu(self.head(self.embed(item))).squeeze(-1)


@pytest.mark.parametrize("sizes", [[60], [25, 35]])
def test_sparse_adam_updates_touched_rows_only(spark: Any, sizes: list[int]) -> None:
    item = np.random.default_rng(0).integers(0, 40, 60)
    score = np.random.default_rng(1).normal(size=60).astype(np.float32)
    bounds = np.cumsum([0, *sizes])
    parts = [Partition(item[a:b], score[a:b]) for a, b in pairwise(bounds)]
    optimizers = {"embed.*": partial(torch.optim.SparseAdam, lr=0.1), "*": SGD}
    with as_dataset(spark, parts) as data:
        result = trainer(Items(), optimizers, loss=nn.MSELoss(), batch_size=20, num_shards=len(sizes)).fit(
            data
        )

    module = Items()
    steps = [torch.optim.SparseAdam(module.embed.parameters(), lr=0.1), SGD(module.head.parameters())]
    for iteration in range(10):
        _, rows = iteration_rows(parts, 20, iteration, 3)
        x = np.concatenate([p.x[r] for p, r in zip(parts, rows, strict=True)])
        y = np.concatenate([p.y[r] for p, r in zip(parts, rows, strict=True)])
        module.zero_grad()
        nn.MSELoss()(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        for step in steps:
            step.step()
    assert relative_error(result.module, module) < 1e-6


# -- adasum ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2])
def test_adasum_of_two_partitions(spark: Any, shards: int) -> None:
    parts = partitioned([90, 110])
    with as_dataset(spark, parts) as data:
        result = trainer(optimizer=SGD, combine="adasum", num_shards=shards).fit(data)
    module = mlp()
    steps = SGD(module.parameters())
    for iteration in range(10):
        _, rows = iteration_rows(parts, 60, iteration, 3)
        gradients = []
        for part, r in zip(parts, rows, strict=True):
            module.zero_grad()
            LOSS(module(torch.from_numpy(part.x[r])), torch.from_numpy(part.y[r])).backward()
            gradients.append([p.grad.clone() for p in module.parameters()])
        for p, a, b in zip(module.parameters(), *gradients, strict=True):
            dot = (a * b).sum()
            p.grad = (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b
        steps.step()
    assert relative_error(result.module, module) < 1e-5


# -- schedules ------------------------------------------------------------------------------------

SCHEDULES = {
    "per epoch": (partial(StepLR, step_size=1, gamma=0.5), False),
    "per iteration": (PerIteration(partial(CosineAnnealingLR, T_max=10)), True),
    "one cycle": (PerIteration(partial(OneCycleLR, max_lr=0.1, total_steps=20)), True),
}


@pytest.mark.parametrize(("schedule", "each"), SCHEDULES.values(), ids=SCHEDULES)
def test_schedules(data: Dataset, schedule: Any, each: bool) -> None:
    result = trainer(optimizer=SGD, schedule=schedule).fit(data)
    factory = schedule.factory if each else schedule
    made: dict[str, Any] = {}
    rates = []

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made["optimizer"] = SGD(parameters)
        made["scheduler"] = factory(made["optimizer"])
        return made["optimizer"]

    def note(*_: Any) -> None:
        rates.append(made["optimizer"].param_groups[0]["lr"])

    def step(iteration: int, *_: Any) -> None:
        if each or (iteration + 1) % 4 == 0:  # 200 rows, 60 a batch: 4 iterations an epoch
            made["scheduler"].step()

    expected = reference(optimizer, on_begin=note, on_step=step)
    assert result.history.column("lr") == rates
    assert_bit_equal(result.module, expected)


@pytest.mark.parametrize("options", [{"exchange": "driver"}, {"iterations_per_job": 3}], ids=str)
def test_a_schedule_may_bring_the_momentum(data: Dataset, tmp_path: Path, options: Any) -> None:
    """OneCycleLR moves it also where SGD had none, and with it no state, when it was made."""
    plain_sgd, cycle = partial(torch.optim.SGD, lr=0.1), partial(OneCycleLR, max_lr=0.1, total_steps=20)
    made: list[Any] = []

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made.append(cycle(plain_sgd(parameters)))
        return made[0].optimizer

    expected = reference(optimizer, on_step=lambda *_: made[0].step())
    options = {"optimizer": plain_sgd, "schedule": PerIteration(cycle), **options}
    assert_bit_equal(trainer(**options).fit(data).module, expected)
    hooks = [Checkpoint(str(tmp_path))]
    trainer(**options, hooks=hooks, end_when=MaxIteration(6)).fit(data)
    assert_bit_equal(trainer(**options, hooks=hooks).fit(data, resume=True).module, expected)


class LaterMomentum(LRScheduler):
    """Gives SGD a momentum from the third iteration on, and takes it away for a while."""

    def get_lr(self) -> list[float]:
        for group in self.optimizer.param_groups:
            group["momentum"] = 0.9 if 2 <= self.last_epoch < 5 or self.last_epoch > 8 else 0.0
        return [group["lr"] for group in self.optimizer.param_groups]


def test_a_schedule_of_ones_own_may_bring_the_momentum_later(data: Dataset) -> None:
    """The schedule was asked at its start alone: a momentum that came later began anew with each job."""
    plain_sgd, made = partial(torch.optim.SGD, lr=0.1), list[Any]()

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made.append(LaterMomentum(plain_sgd(parameters)))
        return made[0].optimizer

    expected = reference(optimizer, on_step=lambda *_: made[0].step())
    schedule = PerIteration(LaterMomentum)
    result = trainer(optimizer=plain_sgd, schedule=schedule, exchange="driver").fit(data)
    assert_bit_equal(result.module, expected)


def test_plateau_schedule_follows_the_validation_score(data: Dataset) -> None:
    # Next to nothing is learned at this rate, so no score is ever better by half.
    schedule = partial(ReduceLROnPlateau, patience=0, factor=0.1, threshold=0.5)
    sgd = partial(torch.optim.SGD, lr=1e-6)
    result = trainer(optimizer=sgd, schedule=schedule, end_when=MaxEpoch(3)).fit(data, validation=data)
    assert result.history.column("lr") == [1e-6] * 8 + [pytest.approx(1e-7)] * 4
    with pytest.raises(ConfigError, match="validation"):
        trainer(optimizer=sgd, schedule=schedule).fit(data)


# -- averaging --------------------------------------------------------------------------------------


def test_ema_is_torchs(split: Dataset) -> None:
    result = trainer(averaging=EMA(0.9)).fit(split)
    averages: list[AveragedModel] = []

    def average(_: int, module: nn.Module, __: Any) -> None:
        if not averages:
            averages.append(AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9)))
        averages[0].update_parameters(module)

    reference(ADAM, SPLIT, on_step=average)
    assert relative_error(result.module, averages[0].module) < 1e-6
    assert result.unaveraged is not None
    assert relative_error(result.unaveraged, averages[0].module) > 1e-4


def test_swa_averages_the_ends_of_epochs(data: Dataset) -> None:
    plain_sgd = partial(torch.optim.SGD, lr=0.1)  # keeps no state of its own
    result = trainer(optimizer=plain_sgd, averaging=SWA(start_epoch=2), end_when=MaxEpoch(4)).fit(data)
    ends: list[nn.Module] = []

    def keep(iteration: int, module: nn.Module, _: Any) -> None:
        if (iteration + 1) % 4 == 0 and iteration >= 7:
            ends.append(copy.deepcopy(module))

    reference(plain_sgd, iterations=16, on_step=keep)
    average = AveragedModel(ends[0])
    for module in ends:
        average.update_parameters(module)
    assert relative_error(result.module, average.module) < 1e-6


class Masked(nn.Module):
    """Scores pixels, of which a mask of minus infinity leaves some out."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(64, 64)
        self.register_buffer("mask", torch.where(torch.arange(64) % 3 == 0, -torch.inf, 0.0))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head((self.scores(x) + self.mask).softmax(1) * x)
        return found


@pytest.mark.parametrize("averaging", [EMA(0.9), SWA(start_epoch=1)], ids=["ema", "swa"])
def test_buffers_of_infinity_are_averaged_as_they_are(split: Dataset, averaging: Any) -> None:
    torch.manual_seed(0)
    module = Masked()
    result = trainer(copy.deepcopy(module), averaging=averaging).fit(split, validation=split)
    assert torch.equal(result.module.mask, module.mask)  # type: ignore[arg-type]
    assert np.isfinite(result.scores["val/loss"])


# -- freezing ---------------------------------------------------------------------------------------


def test_freeze_is_requires_grad_false_for_some_epochs(data: Dataset) -> None:
    adamw = partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
    result = trainer(optimizer=adamw, hooks=[Freeze("0.*", until_epoch=2)], end_when=MaxIteration(12)).fit(
        data
    )

    def toggle(iteration: int, module: Any) -> None:
        module[0].requires_grad_(iteration >= 8)

    assert_bit_equal(result.module, reference(adamw, iterations=12, on_begin=toggle))


def test_unfreeze_trains_what_the_module_froze(data: Dataset) -> None:
    module = mlp()
    module[0].requires_grad_(False)  # type: ignore[index]
    result = trainer(module, hooks=[Unfreeze("0.*", at_epoch=2)], end_when=MaxIteration(12)).fit(data)

    def toggle(iteration: int, module: Any) -> None:
        module[0].requires_grad_(iteration >= 8)

    assert_bit_equal(result.module, reference(iterations=12, on_begin=toggle))
    assert not any(p.requires_grad for p in module[0].parameters())  # type: ignore[index]
    assert not any(p.requires_grad for p in result.module[0].parameters())  # type: ignore[index]


class FreezesTheCallersModule(Hook):
    def on_epoch_end(self, run: Run) -> None:
        run.module[0].requires_grad_(run.state.epoch != 1)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_hook_that_changes_the_callers_module_is_refused(data: Dataset, frozen: bool) -> None:
    module = mlp()
    module[0].requires_grad_(not frozen)  # type: ignore[index]
    hook = FreezesTheCallersModule() if not frozen else Unfreezes()
    with pytest.raises(
        ConfigError, match=rf"requires_grad of '0.weight' became {frozen} while .*Unfreeze"
    ) as e:
        trainer(module, hooks=[hook], end_when=MaxIteration(12)).fit(data)
    assert e.value.result.state.iteration == 4  # type: ignore[attr-defined]


class Unfreezes(Hook):
    def on_epoch_begin(self, run: Run) -> None:
        if run.state.epoch == 1:
            run.module[0].requires_grad_(True)


# -- hooks ------------------------------------------------------------------------------------------


class Recorder(Hook):
    """Writes down what is called, and the gradients."""

    gradients = EveryIterations(2)

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.found: list[dict[str, Any]] = []

    def on_train_begin(self, run: Run) -> None:
        self.calls.append("train")

    def on_train_end(self, run: Run) -> None:
        self.calls.append("end")

    def on_epoch_begin(self, run: Run) -> None:
        self.calls.append("epoch")

    def on_epoch_end(self, run: Run) -> None:
        self.calls.append("/epoch")

    def on_iteration_begin(self, run: Run) -> None:
        self.calls.append("it")

    def on_iteration_end(self, run: Run) -> None:
        self.calls.append("/it")
        self.found.append({name: np.array(g) for name, g in run.gradients().items()})

    def on_validation_begin(self, run: Run, name: str) -> None:
        self.calls.append(f"val {name}")

    def on_validation_end(self, run: Run, name: str, scores: Any) -> None:
        self.calls.append(f"/val {name}")


def test_hooks_are_called_in_order(data: Dataset) -> None:
    hook = Recorder()
    trainer(hooks=[hook], batch_size=100, end_when=MaxIteration(3)).fit(
        data, validation={"a": data, "b": data}
    )
    epoch = ["epoch", "it", "/it", "it", "/it", "val a", "/val a", "val b", "/val b", "/epoch"]
    assert hook.calls == ["train", *epoch, "epoch", "it", "/it", "end"]


def test_hooks_see_gradients_when_they_ask_for_them(split: Dataset) -> None:
    hook = Recorder()
    trainer(hooks=[hook], optimizer=SGD, clip=ClipByNorm(0.01), num_shards=2).fit(split)
    gradients: list[dict[str, Any]] = []

    def keep(_: int, module: nn.Module) -> None:
        gradients.append({n: p.grad.numpy().copy() for n, p in module.named_parameters()})
        nn.utils.clip_grad_norm_(module.parameters(), 0.01)

    reference(SGD, SPLIT, on_backward=keep)
    assert [bool(found) for found in hook.found] == [n % 2 == 0 and n > 0 for n in range(10)]
    for found, expected in zip(hook.found, gradients, strict=True):
        for name, value in found.items():
            assert np.allclose(value, expected[name], rtol=1e-4, atol=1e-6)


def test_a_hook_that_fails_ends_the_run(data: Dataset) -> None:
    class Failing(Hook):
        def on_iteration_end(self, run: Run) -> None:
            raise KeyError("mine")

    after = Recorder()
    with pytest.raises(KeyError, match="mine"):
        trainer(hooks=[Failing(), after]).fit(data)
    assert after.calls[-1] == "end"


def test_a_hook_replaces_the_weights(data: Dataset) -> None:
    first: list[Any] = []

    class Rewind(Hook):
        def on_iteration_end(self, run: Run) -> None:
            first.append(run.snapshot())
            run.replace(first[0])

    result = trainer(hooks=[Rewind()]).fit(data)
    assert_bit_equal(result.module, reference(iterations=1))


def test_a_hook_replaces_broadcast_weights_between_validation_sets(data: Dataset) -> None:
    class Again(Hook):
        def on_validation_begin(self, run: Run, name: str) -> None:
            run.replace(run.snapshot())

        def on_validation_end(self, run: Run, name: str, scores: Any) -> None:
            run.replace(run.snapshot())

    wide = nn.Sequential(nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 10))  # too many weights to go inline
    result = trainer(wide, hooks=[Again()], end_when=MaxEpoch(1)).fit(data, validation={"a": data, "b": data})
    assert result.scores["a/loss"] == result.scores["b/loss"]


def test_a_hook_that_fails_at_the_end_does_not_lose_the_result(data: Dataset) -> None:
    class Failing(Hook):
        def on_train_end(self, run: Run) -> None:
            raise OSError("disk full")

    fitted = trainer(hooks=[Failing()])
    with pytest.raises(OSError, match="disk full"):
        fitted.fit(data)
    assert fitted.result is not None
    assert_bit_equal(fitted.result.module, reference())


def test_an_error_leaves_the_best_weights_to_early_stopping(data: Dataset) -> None:
    best: list[nn.Module] = []

    class Break(Hook):
        def on_epoch_begin(self, run: Run) -> None:
            factor = {2: 100.0, 3: np.nan}.get(run.state.epoch)
            if factor is not None:
                now = run.snapshot()
                best.append(run.trained_module(now))
                run.replace(Snapshot(now.params * np.float64(factor), now.buffers, now.counters))

    sgd = partial(torch.optim.SGD, lr=0.1)
    with pytest.raises(NonFiniteError) as caught:
        trainer(optimizer=sgd, hooks=[Break(), EarlyStopping(5)], end_when=MaxEpoch(9)).fit(
            data, validation=data
        )
    assert_bit_equal(caught.value.result.module, best[0])


# -- validation ---------------------------------------------------------------------------------------


@pytest.mark.jvm
def test_validation_equals_a_single_process(spark: Any, data: Dataset) -> None:
    x, y = digits(500)
    parts = [
        Partition(x[200:330], y[200:330]),
        Partition(x[330:330], y[330:330]),
        Partition(x[330:], y[330:]),
    ]
    metrics = {
        "accuracy": MulticlassAccuracy(10, average="micro"),
        "confusion": (MulticlassConfusionMatrix(10), lambda output, label, _: (output.argmax(1), label)),
    }
    with as_dataset(spark, parts) as held_out:
        fitted = trainer(metrics=metrics, end_when=MaxEpoch(2))
        result = fitted.fit(data, validation={"held": held_out, "train": data})
        again = fitted.evaluate(held_out)
        outputs = fitted.predict(held_out)
    with torch.no_grad():
        expected = result.module.eval()(torch.from_numpy(x[200:]))
    assert np.allclose(outputs, expected.numpy(), rtol=1e-5, atol=1e-6)
    accuracy = float((expected.argmax(1) == torch.from_numpy(y[200:])).float().mean())
    assert again["accuracy"] == result.scores["held/accuracy"] == pytest.approx(accuracy, abs=1e-7)
    loss = float(LOSS(expected, torch.from_numpy(y[200:])))
    assert again["loss"] == result.scores["held/loss"] == pytest.approx(loss, rel=1e-5)
    rows = [(row["epoch"], row["name"]) for row in result.history.validations]
    assert rows == [(1, "held"), (1, "train"), (2, "held"), (2, "train")]
    assert result.state.validations == 2
    assert result.state.score == result.scores["held/accuracy"]


def test_early_stopping_restores_the_best_weights(data: Dataset) -> None:
    class Worsen(Hook):
        """From the third epoch on, weights are thrown away."""

        best: Any = None

        def on_epoch_begin(self, run: Run) -> None:
            if run.state.epoch == 2:
                type(self).best = run.trained_module()
                run.replace(
                    run.snapshot().__class__(
                        *(
                            np.zeros_like(a)
                            for a in (run.snapshot().params, run.snapshot().buffers, run.snapshot().counters)
                        )
                    )
                )

    hooks = [Worsen(), EarlyStopping(2)]
    result = trainer(
        optimizer=partial(torch.optim.SGD, lr=0.1), hooks=hooks, end_when=MaxEpoch(20), monitor="loss"
    ).fit(data, validation=data)
    assert result.stopped_by == "hook"
    assert result.state.epoch == 4
    assert_bit_equal(result.module, Worsen.best)


def test_scores_end_runs(data: Dataset) -> None:
    metrics = MulticlassAccuracy(10, average="micro")
    fast = trainer(
        optimizer=partial(torch.optim.Adam, lr=1e-2), metrics=metrics, end_when=MaxScore(0.9) | MaxEpoch(60)
    )
    result = fast.fit(data, validation=data)
    assert result.state.score >= 0.9
    assert result.state.epoch < 60
    still = trainer(optimizer=partial(torch.optim.SGD, lr=0.0), end_when=Plateaued(3), metrics=metrics)
    assert still.fit(data, validation=data).state.epoch == 4


def test_averaged_weights_are_validated(data: Dataset) -> None:
    fitted = trainer(averaging=EMA(0.9), end_when=MaxEpoch(2), validate_when=EveryEpoch())
    result = fitted.fit(data, validation=data)
    assert fitted.evaluate(data)["loss"] == pytest.approx(result.scores["val/loss"], rel=1e-6)
    other = fitted.evaluate(data, module=result.unaveraged)
    assert other["loss"] != pytest.approx(result.scores["val/loss"], rel=1e-4)


def test_lightnings_name_of_a_score_is_understood(data: Dataset) -> None:
    result = trainer(monitor="val_loss", end_when=MaxEpoch(1)).fit(data, validation=data)
    assert result.state.score == result.scores["val/loss"]


def test_wrong_monitors_are_told_before_anything_runs(data: Dataset) -> None:
    for options, words in (
        ({"monitor": "val/f1"}, "there is no such score"),
        ({"monitor": "loss", "hooks": "x"}, "hooks"),
    ):
        with pytest.raises(ConfigError, match=words):
            trainer(**options).fit(data, validation=data)
    with pytest.raises(ConfigError, match="needs validation"):
        trainer(monitor="val/loss").fit(data)
    with pytest.raises(ConfigError, match="never end"):
        trainer(end_when=Plateaued(2) | MaxScore(0.9)).fit(data)


def test_one_score_of_a_vector_is_monitored(data: Dataset) -> None:
    each = {"each": MulticlassAccuracy(10, average=None)}
    result = trainer(metrics=each, monitor="val/each/3").fit(data, validation=data)
    assert result.state.score == result.scores["val/each/3"]


def test_what_is_no_dataset_or_not_like_the_module_is_told(data: Dataset) -> None:
    for work, error, words in (
        (lambda t: t.fit(data, validation=[data]), ConfigError, "validation: found a builtins.list"),
        (
            lambda t: t.fit(np.zeros(3)),
            ConfigError,
            "data: found a numpy.ndarray, expected a sparkdl Dataset",
        ),
        (lambda t: t.predict(data, batch_size=0), ConfigError, "batch_size=0"),
        (lambda t: t.evaluate(data, module=mlp(64, 9)), ModelError, r"2.weight\[9, 32\] where 2.weight\[10"),
    ):
        with pytest.raises(error, match=words):
            work(trainer())


# -- sample weights ---------------------------------------------------------------------------------


def test_rows_of_weight_zero_say_nothing_about_the_loss(spark: Any) -> None:
    x, y = digits(60)
    each = nn.CrossEntropyLoss(reduction="none")
    some = np.ones(60, np.float32)
    some[:2] = 0
    with (
        Dataset.from_numpy(x, y, np.zeros(60, np.float32), spark=spark) as nothing,
        Dataset.from_numpy(x, y, some, spark=spark) as most,
    ):
        with pytest.raises(DataError, match="weight column 'weight': all 60 weights are zero"):
            trainer(loss=each, end_when=MinLoss(0.01) | MaxIteration(2)).fit(nothing)
        # The first rows, with which everything is tried before the run, do not either.
        result = trainer(loss=each, end_when=MaxIteration(1)).fit(most, validation=most)
        assert 0 < result.scores["val/loss"] < 5


# -- the session ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "conf", "words"),
    [
        ({"transport": "direct"}, {"spark.ssl.rpc.enabled": "true"}, "asks for encryption"),
        ({"transport": "direct"}, {"spark.python.worker.reuse": "false"}, "spark.python.worker.reuse=false"),
        ({"exchange": "sharded"}, {"spark.shuffle.reduceLocality.enabled": "true"}, "needs a session with"),
    ],
)
@pytest.mark.filterwarnings("ignore:this Spark session")
def test_what_the_session_forbids_is_told_before_the_rows_are_read(
    in_process: Any, monkeypatch: pytest.MonkeyPatch, options: Any, conf: dict[str, str], words: str
) -> None:
    context = in_process.sparkContext
    confs = session.recommended() | conf
    monkeypatch.setattr(context, "master", "spark://host:7077")
    monkeypatch.setattr(context, "getConf", lambda: SimpleNamespace(get=confs.get, getAll=confs.items))
    with as_dataset(in_process, PARTS) as data, pytest.raises(ConfigError, match=words):
        trainer(**options).fit(data)
    assert context.jobs == []


# -- steps ------------------------------------------------------------------------------------------


def test_a_step_in_place_of_a_loss(split: Dataset) -> None:
    def step(module: nn.Module, batch: Any) -> dict[str, Any]:
        output = module(batch.inputs)
        loss = LOSS(output, batch.label)
        return {"loss": loss, "twice": 2 * loss.detach(), "output": output}

    fitted = trainer(step=step, metrics=MulticlassAccuracy(10))
    result = fitted.fit(split, validation=split)
    assert_bit_equal(result.module, trainer().fit(split).module)
    twice = result.history.column("extras.twice")
    assert np.allclose(twice, 2 * np.array(result.history.column("loss")))
    assert set(result.scores) == {"val/loss", "val/multiclass_accuracy"}
    with pytest.raises(ConfigError, match="either loss"):
        trainer(step=step, loss=LOSS)


# -- numerics ---------------------------------------------------------------------------------------


def test_bf16_trains_close_to_fp32(data: Dataset) -> None:
    result = trainer(precision="bf16").fit(data)
    error = relative_error(result.module, reference())
    assert 0 < error < 0.02
    assert all(p.dtype == torch.float32 for p in result.module.parameters())


def test_recomputed_activations_change_no_bit(data: Dataset) -> None:
    result = trainer(checkpoint_activations=["0", "1"]).fit(data)
    assert_bit_equal(result.module, reference())
