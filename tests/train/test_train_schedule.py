import json
import math
import pickle
import warnings
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD, Adagrad, Adam, AdamW, lr_scheduler
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from sparkdl import Trainer
from sparkdl.exceptions import ConfigError
from sparkdl.optim.spec import OptimizerSpec, optimizer_spec
from sparkdl.train.fit import scheduled_hyper
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.options.local_steps import LocalSteps
from sparkdl.train.options.schedule import (
    PerEpoch,
    PerIteration,
    linear_scaling,
    one_cycle,
    polynomial,
    sequence,
    warmup,
)
from sparkdl.train.passes.validation import Monitor
from sparkdl.train.scheduled import ScheduledHyper

STEPS = 200


def chained(optimizer):
    return ChainedScheduler(
        [ConstantLR(optimizer, factor=0.1, total_iters=20), ExponentialLR(optimizer, gamma=0.99)]
    )


def sequential(optimizer):
    parts = [LinearLR(optimizer, 0.1, total_iters=30), CosineAnnealingLR(optimizer, T_max=100)]
    return SequentialLR(optimizer, parts, milestones=[30])


def by_warmup(step):
    return min(1, (step + 1) / 50)


FACTORIES = {
    LambdaLR: partial(LambdaLR, lr_lambda=by_warmup),
    MultiplicativeLR: partial(MultiplicativeLR, lr_lambda=lambda step: 0.95),
    StepLR: partial(StepLR, step_size=30),
    MultiStepLR: partial(MultiStepLR, milestones=[10, 50, 150]),
    ConstantLR: partial(ConstantLR, factor=0.5, total_iters=40),
    LinearLR: partial(LinearLR, start_factor=0.1, total_iters=60),
    ExponentialLR: partial(ExponentialLR, gamma=0.97),
    SequentialLR: sequential,
    CosineAnnealingLR: partial(CosineAnnealingLR, T_max=90),
    ChainedScheduler: chained,
    ReduceLROnPlateau: partial(ReduceLROnPlateau, patience=3, factor=0.5),
    CyclicLR: partial(CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=25),
    CosineAnnealingWarmRestarts: partial(CosineAnnealingWarmRestarts, T_0=20, T_mult=2),
    OneCycleLR: partial(OneCycleLR, max_lr=0.3, total_steps=STEPS),
    PolynomialLR: partial(PolynomialLR, total_iters=120, power=2.0),
}
OPTIMIZERS = [partial(SGD, lr=0.1, momentum=0.9), partial(AdamW, lr=0.001)]


def public_schedulers():
    found = [getattr(lr_scheduler, name) for name in lr_scheduler.__all__]
    return [c for c in found if issubclass(c, LRScheduler) and c is not LRScheduler]


def score_of(step):
    """A made-up series that improves, stalls, and improves again."""
    return [1.0, 0.8, 0.7, 0.75, 0.71, 0.72, 0.73, 0.74, 0.5, math.nan][step % 10] - step // 100


def spec(factory=OPTIMIZERS[0], groups=({},)):
    return OptimizerSpec(factory, groups)


def tracked(group):
    return {name: group[name] for name in ("lr", "momentum", "betas") if name in group}


def usual_loop(make_optimizer, groups, make_scheduler, steps=STEPS):
    """Return the hyper-parameters of each step of a loop in plain torch."""
    tensors = [torch.ones(1, requires_grad=True) for _ in groups]
    optimizer = make_optimizer([{"params": [t], **g} for t, g in zip(tensors, groups, strict=True)])
    scheduler = make_scheduler(optimizer)
    rows = []
    for step in range(steps):
        rows.append([tracked(group) for group in optimizer.param_groups])
        for tensor in tensors:
            tensor.grad = torch.ones(1)
        optimizer.step()
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step(score_of(step))
        else:
            scheduler.step()
    return rows


def scheduled(optimizer, schedule, steps=STEPS, **options):
    """Return what the tasks of each iteration would be given: the optimizer's own values, changed."""
    own = [tracked(group) for shadow in optimizer.shadow() for group in shadow.param_groups]
    found = ScheduledHyper(optimizer, schedule, **options)
    rows = []
    for step in range(steps):
        row = [{**before, **changed} for before, changed in zip(own, found.hyper(), strict=True)]
        assert found.learning_rate() == row[0]["lr"]
        rows.append(row)
        found.after_iteration()
        if isinstance(schedule, PerIteration):
            continue
        found.after_epoch()
        found.after_validation(score_of(step))
    return rows


@pytest.mark.parametrize("cls", public_schedulers(), ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "adamw"])
def test_every_scheduler_of_torch_gives_the_same_values(cls, optimizer):
    assert cls in FACTORIES, f"{cls.__name__} is new in torch: add arguments for it to FACTORIES"
    factory = FACTORIES[cls]
    groups = [{}, {"lr": 0.02}]
    expected = usual_loop(optimizer, groups, factory)
    assert len({str(row) for row in expected}) > 1
    assert scheduled(spec(optimizer, tuple(groups)), factory) == expected
    if cls is not ReduceLROnPlateau:
        assert scheduled(spec(optimizer, tuple(groups)), PerIteration(factory)) == expected


def test_a_schedule_changes_only_what_it_changes():
    found = ScheduledHyper(spec(groups=({}, {"lr": 0.5})), PerIteration(partial(StepLR, step_size=2)))
    assert found.hyper() == ({}, {})
    found.after_iteration()
    assert found.hyper() == ({}, {})
    found.after_iteration()
    assert [set(values) for values in found.hyper()] == [{"lr"}, {"lr"}]
    assert [values["lr"] for values in found.hyper()] == pytest.approx([0.01, 0.05])


def test_without_a_schedule_nothing_changes():
    found = ScheduledHyper(spec(), None)
    for _ in range(3):
        found.after_iteration()
        found.after_epoch()
        found.after_validation(0.5)
    assert found.hyper() == ({},)
    assert found.learning_rate() == 0.1
    assert not found.needs_validation


@pytest.mark.parametrize(
    ("wrap", "expected"), [(lambda f: f, 0.025), (PerEpoch, 0.025), (PerIteration, 0.1 / 64)]
)
def test_iterations_and_epochs_are_told_apart(wrap, expected):
    found = ScheduledHyper(spec(), wrap(partial(StepLR, step_size=1, gamma=0.5)))
    for iteration in range(1, 7):
        found.after_iteration()
        if iteration % 3 == 0:
            found.after_epoch()
    assert found.learning_rate() == expected


def test_several_optimizers_get_a_scheduler_each():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    several, _ = optimizer_spec({"0.*": partial(Adam, lr=0.01), "*": partial(SGD, lr=0.1)}, module)
    found = ScheduledHyper(several, partial(StepLR, step_size=1, gamma=0.5))
    found.after_epoch()
    assert found.hyper() == ({"lr": 0.005}, {"lr": 0.05})
    assert found.learning_rate() == 0.005


@pytest.mark.parametrize("factory", [partial(Adagrad, lr=0.1), partial(SGD, lr=torch.tensor(0.1))])
def test_optimizers_with_peculiarities(factory):
    found = ScheduledHyper(spec(factory), warmup(4, start_factor=0.25))
    assert found.learning_rate() == pytest.approx(0.025)
    for _ in range(5):
        found.after_iteration()
    assert found.learning_rate() == pytest.approx(0.1)
    assert ScheduledHyper(spec(factory), None).learning_rate() == pytest.approx(0.1)


class Counting(SGD):
    """Counts its steps in its groups, and in a tensor there, also without gradients."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr)
        for group in self.param_groups:
            group["steps"], group["sum"] = 0, torch.zeros(())

    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] += 1
            group["sum"] += group["lr"]
        return super().step(closure)


def test_what_an_optimizer_counts_in_its_groups_is_none_of_the_schedules():
    found = ScheduledHyper(spec(Counting), partial(StepLR, step_size=1, gamma=0.5))
    assert found.hyper() == ({},)
    found.after_epoch()
    assert found.hyper() == ({"lr": 0.05},)


def test_the_optimizer_is_not_asked_for_gradients_nor_does_torch_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ScheduledHyper(spec(), PerIteration(sequential))
        for _ in range(60):
            found.after_iteration()


@pytest.mark.parametrize("higher_is_better", [False, True])
@pytest.mark.parametrize("mode", [None, "min", "max"])
def test_plateau_follows_the_direction_of_the_score_unless_told(higher_is_better, mode):
    options = {} if mode is None else {"mode": mode}
    factory = partial(ReduceLROnPlateau, patience=0, factor=0.5, **options)
    found = ScheduledHyper(spec(), factory, higher_is_better=higher_is_better)
    assert found.needs_validation
    found.after_validation(1.0)
    found.after_validation(2.0)  # better only if higher is
    expected = mode == "max" or (mode is None and higher_is_better)
    assert found.learning_rate() == (0.1 if expected else 0.05)


def test_plateau_as_a_bare_class_or_function():
    assert ScheduledHyper(spec(), ReduceLROnPlateau).needs_validation
    found = ScheduledHyper(spec(), lambda o: ReduceLROnPlateau(o, "max", 0.5, 0), higher_is_better=False)
    found.after_validation(1.0)
    found.after_validation(2.0)
    assert found.learning_rate() == 0.1


def test_plateau_that_waits_for_smaller_scores_is_refused_where_larger_are_better():
    accuracy = Monitor("val", "accuracy", higher_is_better=True, min_delta=0.0)
    for factory in (lambda o: ReduceLROnPlateau(o, patience=1), partial(ReduceLROnPlateau, mode="min")):
        with pytest.raises(ConfigError, match=r"mode='min', its default, but larger 'accuracy' is better"):
            scheduled_hyper(spec(), TrainConfig(schedule=factory), accuracy)
    for factory in (lambda o: ReduceLROnPlateau(o, "max"), ReduceLROnPlateau):
        assert scheduled_hyper(spec(), TrainConfig(schedule=factory), accuracy).modes == {"max"}


def test_plateau_ignores_iterations_and_epochs():
    found = ScheduledHyper(spec(), partial(ReduceLROnPlateau, patience=0))
    for _ in range(5):
        found.after_iteration()
        found.after_epoch()
    assert found.learning_rate() == 0.1


@pytest.mark.parametrize("cls", public_schedulers(), ids=lambda cls: cls.__name__)
def test_a_saved_schedule_goes_on(cls):
    factory, optimizer = FACTORIES[cls], spec(groups=({}, {"lr": 0.02}))
    first = ScheduledHyper(optimizer, factory)

    def go_on(hyper, begin, end):
        rows = []
        for step in range(begin, end):
            hyper.after_epoch()
            hyper.after_validation(score_of(step))
            rows.append((hyper.learning_rate(), hyper.hyper()))
        return rows

    go_on(first, 0, 40)
    state = first.state_dict()
    expected = go_on(first, 40, 80)
    for _ in range(2):  # loading takes nothing away from the state
        resumed = ScheduledHyper(optimizer, factory)
        resumed.hyper()
        resumed.load_state_dict(state)
        assert go_on(resumed, 40, 80) == expected


def test_a_saved_schedule_is_plain_numbers():
    found = ScheduledHyper(spec(), warmup(5, then=polynomial(20)))
    found.after_iteration()
    state = json.loads(json.dumps(found.state_dict()))
    resumed = ScheduledHyper(spec(), warmup(5, then=polynomial(20)))
    resumed.load_state_dict(state)
    assert resumed.learning_rate() == found.learning_rate()


def test_a_saved_schedule_must_fit():
    state = ScheduledHyper(spec(), partial(StepLR, step_size=1)).state_dict()
    with pytest.raises(
        ConfigError, match=r"saved state has 1 schedulers and groups \[1\], this run 1 and \[2\]"
    ):
        ScheduledHyper(spec(groups=({}, {})), partial(StepLR, step_size=1)).load_state_dict(state)


# Ready-made schedules


def rates(schedule, steps, **options):
    return [row[0]["lr"] for row in scheduled(spec(partial(SGD, lr=1.0, **options)), schedule, steps)]


def test_warmup_starts_at_once_and_ends_at_the_full_rate():
    assert rates(warmup(4, start_factor=0.2), 7) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1])
    assert rates(warmup(10), 1) == [0.01]


def test_warmup_hands_over():
    found = rates(warmup(2, then=partial(StepLR, step_size=2), start_factor=0.5), 8)
    assert found == pytest.approx([0.5, 0.75, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_warmup_before_a_sequence_is_one_sequence():
    inner = sequence([(partial(ConstantLR, factor=0.5, total_iters=9), 2), (polynomial(2), None)])
    assert rates(warmup(2, then=inner, start_factor=0.5), 8) == pytest.approx(
        [0.5, 0.75, 0.5, 0.5, 1, 0.5, 0, 0]
    )


@settings(deadline=None, max_examples=20)
@given(total=st.integers(1, 50), power=st.floats(0.1, 4))
def test_polynomial_follows_its_formula(total, power):
    expected = [(1 - min(i, total) / total) ** power for i in range(60)]
    assert rates(polynomial(total, power), 60) == pytest.approx(expected, abs=1e-9)


def test_sequence_of_three():
    constant = partial(ConstantLR, total_iters=100)
    parts = [(partial(constant, factor=f), n) for f, n in ((0.1, 3), (0.2, 2), (0.3, None))]
    assert rates(sequence(parts), 8) == pytest.approx([0.1] * 3 + [0.2] * 2 + [0.3] * 3)


class OwnLR(LRScheduler):
    def get_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]


@pytest.mark.parametrize(
    ("schedule", "brings"),
    [
        (None, False),
        (partial(StepLR, step_size=1), False),
        (sequence([(partial(StepLR, step_size=1), 2), (partial(ConstantLR), None)]), False),
        (partial(OneCycleLR, max_lr=0.3, total_steps=10), True),
        (OwnLR, True),
        (lambda optimizer: ChainedScheduler([OwnLR(optimizer)], optimizer), True),
    ],
)
def test_what_a_schedule_of_ones_own_will_set_nobody_knows(schedule, brings):
    assert ScheduledHyper(OptimizerSpec(partial(SGD, lr=0.1)), schedule).brings_state is brings


def test_one_cycle_moves_momentum_too():
    schedule = one_cycle(0.3, 10, pct_start=0.4)
    found = scheduled(spec(), schedule, 10)
    assert found == usual_loop(
        OPTIMIZERS[0], [{}], partial(OneCycleLR, max_lr=0.3, total_steps=10, pct_start=0.4), 10
    )
    assert max(row[0]["lr"] for row in found) == pytest.approx(0.3)
    assert {row[0]["momentum"] for row in found} >= {0.95, 0.85}


def test_one_cycle_ends_with_an_error_that_says_so():
    found = ScheduledHyper(spec(), one_cycle(0.3, 5))
    for _ in range(5):
        found.after_iteration()
    with pytest.raises(ConfigError, match=r"OneCycleLR cannot be stepped again: .*total steps is 5"):
        found.after_iteration()


def test_linear_scaling_of_the_paper():
    """Goyal et al.: 0.1 for 256, so 3.2 for 8192, reached after 5 epochs from 0.1."""
    lr, schedule = linear_scaling(0.1, 256, 8192, 5, 157)
    assert lr == pytest.approx(3.2)
    found = [row[0]["lr"] for row in scheduled(spec(partial(SGD, lr=lr)), schedule, 900)]
    assert found[0] == pytest.approx(0.1)
    assert found[157] == pytest.approx(0.1 + 3.1 / 5)
    assert found[784] < 3.2
    assert found[785:] == pytest.approx([3.2] * 115)


def test_linear_scaling_goes_on():
    lr, schedule = linear_scaling(0.1, 32, 64, 2, 5, then=partial(StepLR, step_size=3))
    found = [row[0]["lr"] for row in scheduled(spec(partial(SGD, lr=lr)), schedule, 17)]
    assert found[0] == pytest.approx(0.1)
    assert found[10:] == pytest.approx([0.2] * 3 + [0.02] * 3 + [0.002])


@pytest.mark.parametrize(("batch_size", "epochs"), [(256, 5), (64, 5), (512, 0)])
def test_linear_scaling_warms_up_only_from_below(batch_size, epochs):
    lr, schedule = linear_scaling(0.1, 256, batch_size, epochs, 10)
    assert (lr, schedule) == (pytest.approx(0.1 * batch_size / 256), None)
    _, schedule = linear_scaling(0.1, 256, batch_size, epochs, 10, then=partial(StepLR, step_size=1))
    assert isinstance(schedule, PerIteration)
    assert ScheduledHyper(spec(partial(SGD, lr=lr)), schedule).learning_rate() == lr


def test_ready_made_schedules_can_be_pickled():
    schedule = pickle.loads(pickle.dumps(warmup(5, then=polynomial(20))))
    assert rates(schedule, 30) == rates(warmup(5, then=polynomial(20)), 30)


# Errors


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: warmup(0), r"warmup\(iterations=0\): expected an integer of at least 1"),
        (lambda: warmup(2.5), r"warmup\(iterations=2.5\): expected an integer"),
        (lambda: warmup(2, start_factor=0), r"warmup\(start_factor=0\): expected a finite number above 0"),
        (lambda: warmup(2, start_factor=1.5), r"warmup\(start_factor=1.5\): expected a number of at most 1"),
        (lambda: warmup(2, then=PerEpoch(StepLR)), r"part 1 is per epoch .*count iterations"),
        (lambda: warmup(2, then=3), r"schedule=3: expected a factory"),
        (lambda: polynomial(0), r"polynomial\(total_iters=0\)"),
        (lambda: polynomial(5, math.nan), r"polynomial\(power=nan\)"),
        (lambda: one_cycle(0.1, 0), r"one_cycle\(total_steps=0\)"),
        (lambda: sequence([]), r"sequence\(\[\]\): expected at least one"),
        (lambda: sequence([(StepLR, None), (StepLR, 1)]), r"sequence\(iterations of part 0=None\)"),
        (lambda: sequence([(warmup(1, StepLR), 5), (StepLR, 1)]), r"part 0 is a sequence itself"),
        (lambda: linear_scaling(0, 1, 1, 1, 1), r"linear_scaling\(base_lr=0\)"),
        (lambda: linear_scaling(0.1, 1.5, 1, 1, 1), r"linear_scaling\(base_batch_size=1.5\)"),
        (lambda: linear_scaling(0.1, 1, True, 1, 1), r"linear_scaling\(batch_size=True\)"),
        (lambda: linear_scaling(0.1, 1, 1, -1, 1), r"linear_scaling\(warmup_epochs=-1\)"),
        (lambda: linear_scaling(0.1, 1, 1, 1, 0), r"linear_scaling\(iterations_per_epoch=0\)"),
        (lambda: PerIteration(5), r"schedule=5: expected a factory"),
        (lambda: PerEpoch(PerIteration(StepLR)), r"wrapped twice"),
    ],
)
def test_arguments_are_checked(call, expected):
    with pytest.raises(ConfigError, match=expected):
        call()


def foreign(_):
    return StepLR(SGD([torch.zeros(1)], lr=1.0), 1)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (0.1, r"schedule=0.1: expected a factory"),
        (StepLR, r"cannot be built for SGD: .*step_size"),
        (StepLR(SGD([torch.zeros(1)], lr=1.0), 1), r"schedule=StepLR instance: it belongs to an optimizer"),
        (lambda optimizer: optimizer, r"expected a scheduler of torch.optim.lr_scheduler"),
        (foreign, r"made a scheduler for another optimizer"),
        (PerIteration(ReduceLROnPlateau), r"ReduceLROnPlateau is stepped after each validation"),
        (PerEpoch(partial(ReduceLROnPlateau, patience=1)), r"ReduceLROnPlateau is stepped after each"),
        (warmup(3, then=ReduceLROnPlateau), r"cannot be built for SGD: .*ReduceLROnPlateau"),
        (warmup(3, then=sequential), r"part 1 is a SequentialLR; list its parts"),
        (warmup(3, then=chained), r"part 1 is a ChainedScheduler; list its parts"),
    ],
)
def test_schedules_are_checked_before_training(schedule, expected):
    with pytest.raises(ConfigError, match=expected):
        ScheduledHyper(spec(), schedule)


def test_a_scheduler_that_was_made_before_leaves_the_optimizers_own_rate():
    """Its warm-up had set the rate to 0, which a schedule would have begun with."""
    module = torch.nn.Linear(2, 1)
    optimizer, usual = (SGD(module.parameters(), lr=0.1) for _ in range(2))
    for one in (optimizer, usual):
        LambdaLR(one, lambda n: min(1.0, n / 10))
        assert one.param_groups[0]["lr"] == 0
    found = ScheduledHyper(
        optimizer_spec(optimizer, module)[0], PerIteration(partial(LambdaLR, lr_lambda=by_warmup))
    )
    scheduler = LambdaLR(usual, by_warmup)
    for _ in range(60):
        assert found.learning_rate() == usual.param_groups[0]["lr"]
        found.after_iteration()
        usual.step()
        scheduler.step()


def test_a_scheduler_that_nobody_would_step_is_refused():
    module = torch.nn.Linear(2, 1)
    own = SGD(module.parameters(), lr=0.1)

    def made(parameters):
        optimizer = SGD(parameters, lr=0.1)
        LambdaLR(optimizer, lambda n: min(1.0, n / 10))
        return optimizer

    Trainer(module, loss=torch.nn.MSELoss(), optimizer=own)
    StepLR(own, 30)
    for optimizer, rate in ((own, "0.1"), (made, "0")):
        with pytest.raises(
            ConfigError, match=rf"SGD has a learning-rate scheduler \(lr={rate}, initial_lr=0.1\)"
        ):
            Trainer(module, loss=torch.nn.MSELoss(), optimizer=optimizer)
        scheduled = Trainer(
            module, loss=torch.nn.MSELoss(), optimizer=optimizer, schedule=partial(StepLR, step_size=3)
        )
        with pytest.raises(ConfigError, match="SGD has a learning-rate scheduler"):
            scheduled.with_options(schedule=None)
        with pytest.raises(ConfigError, match="cannot be built for SGD"):
            scheduled.with_options(schedule=partial(StepLR, steps=3))
    for schedule in (None, partial(StepLR, step_size=3)):  # which is that of the partitions' own steps
        with pytest.raises(ConfigError, match=r"SGD of LocalSteps\(outer=\) has a learning-rate scheduler"):
            Trainer(
                module,
                loss=torch.nn.MSELoss(),
                optimizer=partial(SGD, lr=0.1),
                schedule=schedule,
                local_steps=LocalSteps(4, outer=made),
            )
