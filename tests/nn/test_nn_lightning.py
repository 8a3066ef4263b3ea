import pickle
import warnings
from dataclasses import replace
from functools import partial

import cloudpickle
import lightning.pytorch as lightning
import pytest
import pytorch_lightning
import torch
import torchmetrics
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.optim import lr_scheduler as lrs

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.attached import _LEFT_OUT, arguments
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import Batch, evaluate, forward_backward
from sparkdl.nn.lightning import Rebound, check_mode, from_lightning, is_lightning, to_train

ROWS = 6
X, Y = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0)), torch.arange(ROWS) % 2


def modules(library):
    class Own(library.LightningModule):
        def __init__(self, configured=None):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(3, 2)
            self.configured = configured
            self.seen = None

        def forward(self, x):
            return self.layer(x)

        def training_step(self, batch, batch_idx):
            self.seen = batch_idx
            x, y = batch
            output = self(x)
            self.log("accuracy", (output.argmax(1) == y).float().mean(), prog_bar=True, on_step=True)
            self.log_dict({"rows": len(x), "zero": torch.zeros(1)}, sync_dist=True)
            return functional.cross_entropy(output, y)

        def configure_optimizers(self):
            return self.configured(self) if self.configured else super().configure_optimizers()

    return Own


Own = modules(lightning)


def batch():
    return Batch(X, Y, None, ROWS)


def step(module, of=None):
    return forward_backward(FlatModule(module), of or batch(), from_lightning(module).objective, None)


# -- objective ----------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [lightning, pytorch_lightning], ids=["lightning", "pytorch_lightning"])
def test_the_training_step_is_minimised_and_its_logs_are_extras(library):
    module = modules(library)(lambda m: SGD(m.parameters(), lr=0.1))
    plain = nn.Linear(3, 2)
    plain.load_state_dict(module.layer.state_dict())
    expected = functional.cross_entropy(plain(X), Y)
    expected.backward()
    replica = FlatModule(module)
    result = forward_backward(replica, batch(), from_lightning(module).objective, None)
    assert result.loss == expected.item()
    assert torch.equal(replica.grad, torch.cat([plain.weight.grad.flatten(), plain.bias.grad]))
    right = (plain(X).argmax(1) == Y).float().mean().item()
    assert result.extras == {"accuracy": pytest.approx(right), "rows": 6.0, "zero": 0.0}
    assert module.seen == 0
    assert "log" not in vars(module)


def test_steps_need_not_take_the_number_of_a_batch():
    """Lightning gives it to those that do."""

    class One(Own):
        def training_step(self, batch):
            return super().training_step(batch, 0)

        def validation_step(self, batch):
            x, y = batch
            return functional.cross_entropy(self(x), y) + 1

    class Several(Own):
        def training_step(self, *given):
            assert len(given) == 2
            return super().training_step(*given)

    class Named(Own):
        def training_step(self, batch, number, more=3):
            assert (number, more) == (0, 3)
            return super().training_step(batch, number)

    optimizer = lambda m: SGD(m.parameters(), lr=0.1)  # noqa: E731
    expected = step(Own(optimizer)).loss
    assert [step(cls(optimizer)).loss for cls in (One, Several, Named)] == [expected] * 3
    for cls in (One, Several, Named):
        own = cls(optimizer).training_step
        numbered = is_param_in_hook_signature(own, "batch_idx", min_args=2)
        assert len(arguments(own, batch())) == 1 + numbered
    module = One(optimizer)
    found = from_lightning(module).objective.evaluate(module, batch())
    assert found.loss.item() == pytest.approx(expected + 1)


def test_extras_are_means_over_micro_batches():
    module = Own(lambda m: SGD(m.parameters()))
    result = forward_backward(FlatModule(module), batch(), from_lightning(module).objective, 4)
    assert result.extras["rows"] == pytest.approx((4 * 4 + 2 * 2) / 6)


def test_without_a_label_the_step_gets_the_inputs_alone():
    class Alone(Own):
        def training_step(self, batch, batch_idx):
            return {"loss": self(batch).square().mean(), "hidden": batch}

    module = Alone(lambda m: SGD(m.parameters()))
    result = step(module, Batch(X, None, None, ROWS))
    assert result.loss == pytest.approx(module(X).square().mean().item())
    assert result.extras == {}


def test_metrics_are_logged_by_their_value_on_the_batch():
    class Metric(Own):
        def __init__(self, configured):
            super().__init__(configured)
            self.metric = torchmetrics.MeanSquaredError()

        def training_step(self, batch, batch_idx):
            x, y = batch
            output = self(x)[:, 0]
            self.metric(output, y)
            self.log("mse", self.metric)
            return functional.mse_loss(output, y.float())

    module = Metric(lambda m: SGD(m.parameters()))
    for _ in range(2):
        result = step(module)
        assert result.extras["mse"] == pytest.approx(result.loss)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda self: None, "training_step returned a NoneType; expected a torch.Tensor"),
        (lambda self: {"other": 1}, r"training_step returned a dict with the keys \[\]; it needs 'loss'"),
        (lambda self: self.log("x", torch.zeros(2)), r"self.log\('x'\) got a value, float32\[2\]"),
        (lambda self: self(X[:, :2]), r"layer 'layer', Linear.*got input float32\[6, 2\]"),
        (
            lambda self: self.trainer.max_epochs,
            "a step of Wrong failed: AttributeError.*no Lightning",
        ),
    ],
)
def test_mistakes_in_the_step_are_explained(returned, message):
    class Wrong(Own):
        def training_step(self, batch, batch_idx):
            return returned(self)

    with pytest.raises(ModelError, match=message):
        step(Wrong(lambda m: SGD(m.parameters())))


def test_an_evaluation_without_validation_step_uses_the_training_step():
    module = Own(lambda m: SGD(m.parameters()))
    replica = FlatModule(module)
    with replica.evaluating():
        found = evaluate(replica, batch(), from_lightning(module).objective)
    assert found.loss.item() == pytest.approx(functional.cross_entropy(module(X), Y).item())
    assert torch.equal(found.output, module(X))
    assert found.extras == {}  # they are of the training, and no scores


@pytest.mark.parametrize("returns", [True, False])
def test_an_evaluation_runs_the_validation_step(returns):
    class Validated(Own):
        def validation_step(self, batch, batch_idx):
            assert not self.training
            self.log("val_one", 1)
            return self(batch[0]).sum() * 0 + 7 if returns else None

    module = Validated(lambda m: SGD(m.parameters()))
    replica = FlatModule(module)
    with replica.evaluating():
        found = evaluate(replica, batch(), from_lightning(module).objective)
    assert found.extras["val_one"] == 1
    expected = 7 if returns else functional.cross_entropy(module(X), Y).item()
    assert found.loss.item() == pytest.approx(expected)
    assert found.extras == {"val_one": 1}


def test_hooks_that_begin_something_run_where_it_begins():
    class Hooked(Own):
        def __init__(self, configured):
            super().__init__(configured)
            self.seen = []

        def on_train_start(self):
            self.seen.append("train")

        def on_train_epoch_start(self):
            self.seen.append(("epoch", self.current_epoch))

        def on_train_batch_start(self, batch, batch_idx):
            assert batch[0].shape == (ROWS, 3)
            self.log("warmth", self.global_step / 10)

        def training_step(self, batch, batch_idx):
            self.seen.append((self.current_epoch, self.global_step, self.trainer.training, self.logger))
            return self(batch[0]).sum()

    module = Hooked(lambda m: SGD(m.parameters()))
    for epoch, iteration in ((1, 7), (1, 8), (2, 9)):
        result = step(module, replace(batch(), epoch=epoch, iteration=iteration))
        assert result.extras == {"warmth": pytest.approx(iteration / 10)}
    steps = [(1, 7, True, None), (1, 8, True, None), (2, 9, True, None)]
    assert module.seen == ["train", ("epoch", 1), *steps[:2], ("epoch", 2), steps[2]]
    assert module._trainer is None
    assert (module.current_epoch, module.global_step) == (0, 0)


def test_a_hook_of_an_epoch_freezes_nothing_for_later_processes_would_train_it():
    class Freezes(Own):
        def on_train_start(self):
            next(self.parameters()).requires_grad_(False)  # in each process, so it may

        def on_train_epoch_start(self):
            if self.current_epoch == 1:
                list(self.parameters())[-1].requires_grad_(False)

    module = Freezes(lambda m: SGD(m.parameters()))
    last = list(dict(module.named_parameters()))[-1]
    step(module)
    for _ in range(2):  # a second attempt does not pass over it
        with pytest.raises(ModelError, match=f"on_train_epoch_start froze parameter '{last}'.*from_epoch="):
            step(module, replace(batch(), epoch=1))
    assert [p.requires_grad for p in module.parameters()][-1]


def test_hooks_that_will_not_run_are_told():
    class Hooked(Own):
        def on_train_epoch_end(self):
            pass

        def optimizer_step(self, *args):
            pass

        def on_test_end(self):
            pass

        def training_step_end(self, output):
            return 2 * output

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from_lightning(Hooked(lambda m: SGD(m.parameters())))
    found = sorted(str(warning.message) for warning in caught)
    assert [text.partition(":")[0] for text in found] == [
        "Hooked.on_train_epoch_end is defined and will not run",
        "Hooked.optimizer_step is defined and will not run",
        "Hooked.training_step_end is defined and will not run",
    ]
    assert all(": " in text for text in found)
    for name in _LEFT_OUT:
        assert hasattr(lightning.LightningModule, name), name

    class Skips(Own):
        def on_train_batch_start(self, batch, batch_idx):
            return -1

    with pytest.raises(ModelError, match="on_train_batch_start returned -1.*leave rows out"):
        step(Skips(lambda m: SGD(m.parameters())))


def test_module_and_objective_can_be_shipped():
    module = Own(lambda m: SGD(m.parameters()))
    step(module)
    parts = from_lightning(Own(lambda m: SGD(m.parameters())))
    shipped, objective = pickle.loads(cloudpickle.dumps((Own(), parts.objective)))
    assert shipped._trainer is None
    forward_backward(FlatModule(shipped), batch(), objective, None)


# -- configure_optimizers -----------------------------------------------------------------------


def adam(module):
    return Adam([{"params": [module.layer.weight]}, {"params": [module.layer.bias], "lr": 0.5}], lr=0.1)


def with_schedule(form):
    def configured(module):
        optimizer = adam(module)
        return form(optimizer, lrs.StepLR(optimizer, 2, gamma=0.5))

    return configured


FORMS = {
    "lists": (lambda o, s: ([o], [s]), ("epoch", 1, None)),
    "tuples": (lambda o, s: ((o,), (s,)), ("epoch", 1, None)),
    "lists of dicts": (lambda o, s: ([o], [{"scheduler": s, "interval": "step"}]), ("step", 1, None)),
    "dict": (lambda o, s: {"optimizer": o, "lr_scheduler": s}, ("epoch", 1, None)),
    "dict of dict": (
        lambda o, s: {
            "optimizer": o,
            "lr_scheduler": {"scheduler": s, "interval": "step", "frequency": 3, "monitor": "val_loss"},
        },
        ("step", 3, None),  # a StepLR follows no score
    ),
    "list of dict": (lambda o, s: [{"optimizer": o, "lr_scheduler": s}], ("epoch", 1, None)),
}


@pytest.mark.parametrize(("form", "expected"), FORMS.values(), ids=FORMS)
def test_every_form_with_a_schedule(form, expected):
    module = Own(with_schedule(form))
    parts = from_lightning(module)
    assert [g["lr"] for g in parts.optimizer.param_groups] == [0.1, 0.5]
    assert parts.optimizer.param_groups[0]["params"][0] is module.layer.weight
    schedule = parts.schedule
    assert (schedule.interval, schedule.frequency, schedule.monitor) == expected
    assert isinstance(schedule.factory(adam(module)), lrs.StepLR)


@pytest.mark.parametrize(
    "form",
    [lambda o: o, lambda o: [o], lambda o: (o,), lambda o: {"optimizer": o}, lambda o: ([o], [])],
)
def test_every_form_without_a_schedule(form):
    parts = from_lightning(Own(lambda m: form(adam(m))))
    assert isinstance(parts.optimizer, Adam)
    assert parts.schedule is None


def test_a_module_need_not_configure_an_optimizer():
    class Bare(lightning.LightningModule):
        def training_step(self, batch, batch_idx):
            return batch

    assert from_lightning(Bare()).optimizer is None
    assert from_lightning(Own(lambda m: None)).optimizer is None


def plateau(module, **entry):
    optimizer = adam(module)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": lrs.ReduceLROnPlateau(optimizer), **entry}}


REFUSED = {
    "two optimizers": (lambda m: [adam(m), adam(m)], "returned 2 optimizers; expected one"),
    "two and no schedules": (lambda m: ([adam(m), adam(m)], []), "returned 2 optimizers"),
    "two dicts": (lambda m: ({"optimizer": adam(m)}, {"optimizer": adam(m)}), "returned 2 optimizers"),
    "no optimizer": (lambda m: {"lr_scheduler": 1}, "returned None; expected an optimizer"),
    "a number": (lambda m: 3, "returned 3; expected an optimizer"),
    "two schedulers": (
        lambda m: ([o := adam(m)], [lrs.StepLR(o, 1), lrs.StepLR(o, 2)]),
        "returned 2 schedulers; .*ChainedScheduler",
    ),
    "other scheduler": (
        lambda m: ([adam(m)], [lrs.StepLR(adam(m), 1)]),
        "for the optimizer that was returned",
    ),
    "no scheduler": (lambda m: ([adam(m)], [{"interval": "step"}]), "the scheduler None; expected"),
    "interval": (
        lambda m: ([o := adam(m)], [{"scheduler": lrs.StepLR(o, 1), "interval": "day"}]),
        "interval is 'day'; expected 'epoch' or 'step'",
    ),
    "frequency": (
        lambda m: ([o := adam(m)], [{"scheduler": lrs.StepLR(o, 1), "frequency": 0}]),
        "frequency is 0; expected an integer",
    ),
    "unmonitored": (plateau, "ReduceLROnPlateau needs to know what to follow"),
    "trainer": (lambda m: SGD(m.parameters(), lr=m.trainer.max_steps), "There is no Lightning Trainer here"),
}


@pytest.mark.parametrize(("configured", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_used_is_refused(configured, message):
    with pytest.raises(ConfigError, match=message):
        from_lightning(Own(configured))


def test_a_plateau_names_what_it_follows():
    parts = from_lightning(Own(lambda m: plateau(m, monitor="val_loss")))
    assert parts.schedule.monitor == "val_loss"


def test_manual_optimization_and_a_missing_step_are_refused():
    module = Own(adam)
    module.automatic_optimization = False
    with pytest.raises(ConfigError, match="manual optimization"):
        from_lightning(module)
    with pytest.raises(ConfigError, match="LightningModule has no training_step"):
        from_lightning(lightning.LightningModule())


# -- schedules ----------------------------------------------------------------------------------


SCHEDULERS = {
    "StepLR": partial(lrs.StepLR, step_size=2, gamma=0.5),
    "LambdaLR": partial(lrs.LambdaLR, lr_lambda=[lambda e: e / 5, lambda e: 1.0]),
    "Exponential": partial(lrs.ExponentialLR, gamma=0.9),
    "Cosine": partial(lrs.CosineAnnealingLR, T_max=5),
    "Restarts": partial(lrs.CosineAnnealingWarmRestarts, T_0=2),
    "OneCycle": partial(lrs.OneCycleLR, max_lr=[1.0, 2.0], total_steps=10),
    "Cyclic": partial(lrs.CyclicLR, base_lr=0.1, max_lr=1.0, step_size_up=2, cycle_momentum=False),
    "Cyclic, scaled": partial(
        lrs.CyclicLR, base_lr=0.1, max_lr=1.0, step_size_up=2, mode="exp_range", cycle_momentum=False
    ),
    "Linear": partial(lrs.LinearLR, start_factor=0.1, total_iters=3),
    "Chained": lambda o: lrs.ChainedScheduler([lrs.ExponentialLR(o, 0.9), lrs.LinearLR(o)]),
    "Sequential": lambda o: lrs.SequentialLR(
        o, [lrs.LinearLR(o, 0.1, total_iters=3), lrs.CosineAnnealingLR(o, 5)], [3]
    ),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_rebound_scheduler_does_to_another_optimizer_what_it_did_to_its_own(make):
    module = nn.Module()
    module.layer = nn.Linear(3, 2)
    own = adam(module)
    scheduler = make(own)
    factory = Rebound(scheduler)
    others = [Adam([{"params": [torch.ones(1)]}, {"params": [torch.ones(1)]}]) for _ in range(2)]
    rebound = [factory(other) for other in others]
    assert all(r.optimizer is o for r, o in zip(rebound, others, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(8):
            found = [[(g["lr"], g["betas"]) for g in o.param_groups] for o in (own, *others)]
            assert found[0] == found[1] == found[2]
            for optimizer, schedule in zip((own, *others), (scheduler, *rebound), strict=True):
                optimizer.step()
                schedule.step()


def test_a_rebound_plateau_follows_the_score():
    parts = from_lightning(Own(lambda m: plateau(m, monitor="val_loss")))
    other = Adam([{"params": [torch.ones(1)]}, {"params": [torch.ones(1)]}])
    scheduler = parts.schedule.factory(other)
    for _ in range(12):
        other.step()
        scheduler.step(1.0)
    assert other.param_groups[0]["lr"] == pytest.approx(0.01)
    assert parts.optimizer.param_groups[0]["lr"] == 0.1


def test_a_schedule_for_other_groups_is_refused():
    factory = Rebound(lrs.StepLR(SGD([torch.ones(1)], lr=1), 1))
    with pytest.raises(ConfigError, match="optimizer with 1 parameter groups, not 2"):
        factory(SGD([{"params": [torch.ones(1)]}, {"params": [torch.ones(1)]}], lr=1))


# -- no Lightning -------------------------------------------------------------------------------


class Quacks(nn.Linear):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        raise AssertionError

    configure_optimizers = training_step


def test_what_only_looks_like_a_lightning_module_is_left_alone():
    assert not is_lightning(Quacks(1, 1))
    assert from_lightning(Quacks(1, 1)) is None
    assert is_lightning(Own())


# -- what log is asked for ----------------------------------------------------------------------


class Logs(Own):
    """Logs something in its training or validation step."""

    def __init__(self, log, validates=False):
        super().__init__(lambda m: SGD(m.parameters()))
        self.what, self.validates = log, validates
        self.f1 = torchmetrics.classification.MulticlassF1Score(2)

    def training_step(self, batch, batch_idx):
        if not self.validates:
            self.what(self)
        return functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.f1(self(batch[0]), batch[1])
        if self.validates:
            self.what(self)


REFUSED = {
    "max": (lambda m: m.log("x", 1.0, reduce_fx="max"), r"reduce_fx='max'.*MaxMetric"),
    "sum": (lambda m: m.log_dict({"x": 1.0}, reduce_fx=torch.sum), r"'x'.*reduce_fx='sum'"),
    "by position": (lambda m: m.log("x", 1.0, False, None, None, None, "min"), r"reduce_fx='min'"),
    "batch_size": (lambda m: m.log("x", 1.0, batch_size=40), rf"batch_size=40 of a batch of {ROWS} rows"),
}
TAKEN = {
    "shown": lambda m: m.log("x", 1.0, True, True, True, True, "mean", sync_dist=True),
    "torch.mean": lambda m: m.log("x", 1.0, reduce_fx=torch.mean, batch_size=ROWS, rank_zero_only=True),
}


def run(module):
    replica = FlatModule(module)
    if not module.validates:
        return forward_backward(replica, batch(), from_lightning(module).objective, None)
    with replica.evaluating():
        return evaluate(replica, batch(), from_lightning(module).objective)


@pytest.mark.parametrize("validates", [False, True], ids=["training", "validation"])
@pytest.mark.parametrize("name", [*REFUSED, *TAKEN])
def test_options_of_log_hold_or_are_refused_by_name(name, validates):
    if name in TAKEN:
        assert run(Logs(TAKEN[name], validates)).extras == {"x": 1.0}
        return
    log, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        run(Logs(log, validates))


def test_a_metric_over_all_batches_is_refused_by_name():
    with pytest.raises(ModelError, match=r"MulticlassF1Score over all batches.*metrics=\{'f1'"):
        run(Logs(lambda m: m.log("f1", m.f1), validates=True))
    with pytest.raises(ModelError, match="MulticlassF1Score over all batches"):
        run(Logs(lambda m: m.log("f1", m.f1, on_epoch=True)))


def test_a_score_of_a_step_is_refused():
    with pytest.raises(ModelError, match="on_epoch=False in a validation"):
        run(Logs(lambda m: m.log("x", 1.0, on_epoch=False), validates=True))


def test_an_option_that_lightning_does_not_know():
    with pytest.raises(ModelError, match="unexpected keyword argument 'reduce'"):
        run(Logs(lambda m: m.log("x", 1.0, reduce="max")))


# -- modes --------------------------------------------------------------------------------------


def test_layers_keep_the_mode_that_they_have_before_the_fit():
    module = Own()
    module.norm = nn.BatchNorm1d(3).eval()
    assert to_train(module) is module
    assert (module.training, module.layer.training, module.norm.training) == (True, True, False)
    plain = nn.Sequential(nn.BatchNorm1d(3).eval())
    assert to_train(plain)[0].training


def test_a_module_in_evaluation_mode_is_refused():
    check_mode(Own())
    check_mode(nn.Linear(1, 1).eval())
    with pytest.raises(ModelError, match=r"evaluation mode.*module\.train\(\)"):
        check_mode(Own().eval())


def test_class_weights_are_the_divisor_in_micro_batches_and_validation():
    weight = torch.tensor([1.0, 20.0])

    class Weighted(Own):
        def training_step(self, batch, batch_idx):
            return functional.cross_entropy(self(batch[0]), batch[1], weight)

        def validation_step(self, batch, batch_idx):
            return {"loss": self.training_step(batch, batch_idx)}

    module = Weighted(lambda m: SGD(m.parameters()))
    plain = nn.Linear(3, 2)
    plain.load_state_dict(module.layer.state_dict())
    expected = functional.cross_entropy(plain(X), Y, weight)
    expected.backward()
    replica, objective = FlatModule(module), from_lightning(module).objective
    result = forward_backward(replica, batch(), objective, 5)
    assert (result.loss, result.divisor) == (pytest.approx(expected.item()), weight[Y].sum())
    found = torch.cat([plain.weight.grad.flatten(), plain.bias.grad])
    torch.testing.assert_close(replica.grad, found)
    with replica.evaluating():
        assert evaluate(replica, batch(), objective).divisor == weight[Y].sum()
