import importlib
import inspect
import logging
import math
import pkgutil
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import sparkdl.train
from sparkdl.allreduce.shard_states import Snapshot
from sparkdl.exceptions import ConfigError, SparkdlWarning
from sparkdl.nn.flat import FlatModule, write_back
from sparkdl.train.checkpoint import latest, load_weights
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.history import History
from sparkdl.train.hooks.base import Hook
from sparkdl.train.hooks.callbacks import EarlyStopping, Freeze, GradientNorms, Unfreeze
from sparkdl.train.hooks.calls import HookCalls
from sparkdl.train.hooks.checkpoint import Checkpoint
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.options.triggers import EveryEpoch, EveryIterations
from sparkdl.train.recipe import is_frozen
from sparkdl.train.run import Run
from sparkdl.train.state import TrainState


def body_and_head():
    torch.manual_seed(0)
    return nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 1)})


class Driver:
    """Calls hooks as the Trainer does; all weights have the number of completed iterations."""

    def __init__(self, hooks, *, steps=2, scores=None, averaged=None, start=None, make=body_and_head):
        self.hooks = hooks
        self.scores = scores or {}
        self.asked = []
        module = make()
        self.flat = FlatModule(make())
        state = start or TrainState()
        self.run = Run(
            name="test",
            config=TrainConfig(progress=False, hooks=hooks),
            module=module,
            data=None,
            optimizer=None,
            objective=None,
            layout=self.flat.layout,
            steps=steps,
            history=History(),
            previous=state,
            state=state,
            _write_back=self.write_back,
        )
        self._average = averaged
        self.run.follow(self)

    def current(self):
        return self.snapshot(self.run.state.iteration)

    def averaged(self):
        return self.snapshot(self._average or self.run.state.iteration)

    def rows(self):
        return {}

    def write_shards(self, folder, since=0):
        return {}

    def snapshot(self, value):
        params = np.full(self.run.layout.numel, value, np.float32)
        return Snapshot(params, np.empty(0, np.float32), np.empty(0, np.int64))

    def point(self, kept=True, since=0):
        run = self.run
        return ResumePoint(
            state=run.state,
            snapshot=run.snapshot(),
            states=[],
            average_buffers=None,
            averaged=0,
            history=run.history,
            scores=run.scores,
            setting={},
            steps=run.steps,
            batch_size=1,
        )

    def write_back(self, snapshot):
        module = body_and_head()
        write_back(module, self.run.layout, snapshot.params, snapshot.buffers, snapshot.counters)
        return module

    def call(self, method, *args):
        for hook in self.hooks:
            getattr(hook, method)(self.run, *args)

    def fit(self, epochs):
        """Run some epochs and return what the hooks made of the weights."""
        run = self.run
        self.call("on_train_begin")
        while run.state.epoch < epochs and not run.stopped:
            if run.state.step == 0:
                self.call("on_epoch_begin")
            self.iterate()
            if run.state.step == 0:
                self.validate()
                self.call("on_epoch_end")
            self.call("on_boundary", False)
        self.call("on_boundary", True)
        self.call("on_train_end")
        return float((run.take_replacement() or run.snapshot()).params[0])

    def iterate(self):
        run = self.run
        wanted = any(h.gradients is not None and h.gradients(run.previous, run.state) for h in self.hooks)
        self.call("on_iteration_begin")
        self.asked.append(run.frozen)
        gradient = np.arange(run.layout.numel, dtype=np.float32) - run.state.iteration
        run.outcome = SimpleNamespace(gradient=gradient if wanted else None)
        run.previous, run.state = run.state, run.state.advance(run.steps, 1, 0.5)
        self.call("on_iteration_end")

    def validate(self):
        run = self.run
        if run.state.epoch not in self.scores:
            return
        for name in ("extra", "valid"):
            self.call("on_validation_begin", name)
            values = {"accuracy": self.scores[run.state.epoch]}
            if name == "valid":
                run.scores["valid/accuracy"] = values["accuracy"]
                run.state = run.state.validated(values["accuracy"], higher_is_better=True)
            self.call("on_validation_end", name, values)


# EarlyStopping


def scores(*values):
    return dict(enumerate(values, 1))


def test_early_stopping_stops_when_patience_is_over():
    driver = Driver([EarlyStopping(2)], scores=scores(0.5, 0.7, 0.6, 0.7, 0.9))
    assert driver.fit(9) == 4  # the weights after two epochs of two iterations
    assert driver.run.state.epoch == 4
    assert driver.run.stopped == "EarlyStopping: no score better than 0.7 in 2 validations"


def test_early_stopping_goes_on_while_scores_improve():
    driver = Driver([EarlyStopping(1)], scores=scores(0.1, 0.2, 0.3))
    assert driver.fit(3) == 6
    assert not driver.run.stopped


def test_early_stopping_restores_the_best_also_without_stopping():
    driver = Driver([EarlyStopping(5)], scores=scores(0.5, 0.9, 0.6))
    assert driver.fit(3) == 4
    assert not driver.run.stopped


def test_early_stopping_may_leave_the_last_weights():
    driver = Driver([EarlyStopping(1, restore_best=False)], scores=scores(0.9, 0.6))
    assert driver.fit(5) == 4
    assert driver.run.stopped


def test_early_stopping_keeps_averaged_weights():
    assert Driver([EarlyStopping(1)], scores=scores(0.9, 0.6), averaged=99).fit(5) == 99


def test_early_stopping_without_a_score_restores_nothing():
    driver = Driver([EarlyStopping(2)], scores=scores(math.nan, math.nan))
    assert driver.fit(5) == 4
    assert driver.run.stopped


def test_early_stopping_does_nothing_without_validation():
    driver = Driver([EarlyStopping(1)])
    assert driver.fit(3) == 6
    assert not driver.run.stopped


def test_early_stopping_can_be_used_again():
    hook = EarlyStopping(1)
    assert Driver([hook], scores=scores(0.9, 0.6)).fit(5) == 2
    assert Driver([hook], scores=scores(0.1, 0.2)).fit(2) == 4


def test_early_stopping_of_a_resumed_run_waits_for_what_is_left():
    start = TrainState(epoch=2, iteration=4, validations=2, score=0.5, best_score=0.9, stale=1)
    driver = Driver([EarlyStopping(2)], scores=scores(0, 0, 0.6), start=start)
    with pytest.warns(SparkdlWarning, match=r"the best score, 0\.9, is that of a validation before"):
        assert driver.fit(9) == 6  # the best weights are of the run before
    assert driver.run.stopped
    better = Driver([EarlyStopping(2)], scores=scores(0, 0, 0.95, 0.1), start=start)
    assert better.fit(4) == 6


def test_early_stopping_of_a_run_that_it_has_stopped_before_trains_no_further():
    start = TrainState(epoch=4, iteration=8, validations=4, score=0.7, best_score=0.9, stale=2)
    driver = Driver([EarlyStopping(2, restore_best=False)], scores=scores(0, 0, 0, 0, 0.95), start=start)
    driver.fit(9)
    assert (driver.run.state.iteration, bool(driver.run.stopped)) == (8, True)


def test_early_stopping_restores_no_weights_of_a_score_that_was_monitored_before():
    driver = Driver([EarlyStopping(2)], scores=scores(math.nan, math.nan))
    best, begin = driver.snapshot(7), driver.hooks[0].on_train_begin

    def resumed(run):
        begin(run)
        driver.hooks[0].load_state_dict(asdict(best))

    driver.hooks[0].on_train_begin = resumed
    assert driver.fit(2) == driver.run.state.iteration
    assert "valid/accuracy" in driver.run.scores


def test_early_stopping_logs_what_it_restores(caplog):
    caplog.set_level(logging.INFO, "sparkdl")
    Driver([EarlyStopping(2)], scores=scores(0.75, 0.1, 0.2)).fit(9)
    assert "restored the weights with score 0.75, 2 validations back" in caplog.text


# Freeze and Unfreeze

BODY, HEAD = {"body.weight", "body.bias"}, {"head.weight", "head.bias"}


def frozen_by_epoch(hooks, epochs, *, initially=frozenset(), start=None):
    driver = Driver(hooks, steps=1, start=start)
    driver.run.frozen = frozenset(initially)
    driver.fit(epochs)
    return [set(names) for names in driver.asked]


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ([Freeze("body.*")], [BODY] * 4),
        ([Freeze("body.*", until_epoch=2)], [BODY, BODY, set(), set()]),
        ([Freeze("head.*", from_epoch=3)], [set(), set(), set(), HEAD]),
        ([Freeze("head.*", 3, from_epoch=1)], [set(), HEAD, HEAD, set()]),
        ([Freeze("*", 1), Freeze("body.*", 3)], [BODY | HEAD, BODY, BODY, set()]),
        ([Freeze("body.*", 3), Freeze("*", 1)], [BODY | HEAD, BODY, BODY, set()]),
        ([Freeze("body.*", 2), Freeze("head.*", 4, 2)], [BODY, BODY, HEAD, HEAD]),
        ([Freeze("body.*", from_epoch=1), Freeze("body.*", 1)], [BODY] * 4),
        ([Freeze("body.*", 1), Freeze("body.*", from_epoch=1)], [BODY] * 4),
        ([Freeze("body.*", 3, from_epoch=1), Freeze("*", 2)], [BODY | HEAD, BODY | HEAD, BODY, set()]),
        ([Freeze("head.bias", 1)], [{"head.bias"}, set(), set(), set()]),
    ],
)
def test_what_is_frozen_when(hooks, expected):
    assert frozen_by_epoch(hooks, 4) == expected
    assert frozen_by_epoch(hooks, 4) == expected, "hooks can be used again"


@pytest.mark.parametrize(
    ("at_epoch", "expected"), [(0, [set(), set(), set()]), (2, [BODY, BODY, set()]), (5, [BODY] * 3)]
)
def test_unfreeze_trains_what_the_module_has_frozen(at_epoch, expected):
    hook = Unfreeze("body.*", at_epoch=at_epoch)
    assert hook.unfreezes == ("body.*",)
    assert frozen_by_epoch([hook], 3, initially=BODY) == expected


def embedding_and_output():
    module = nn.ModuleDict({"embed": nn.Embedding(3, 2), "out": nn.Linear(2, 3)})
    module["out"].weight = module["embed"].weight
    return module


def test_a_pattern_matches_a_tied_parameter_by_each_of_its_names():
    for pattern, expected in (("out.*", {"embed.weight", "out.bias"}), ("embed.*", {"embed.weight"})):
        driver = Driver([Freeze(pattern)], make=embedding_and_output)
        driver.fit(1)
        assert driver.run.frozen == expected
    module = embedding_and_output().requires_grad_(False)
    assert not is_frozen(module, ["out.weight"])
    assert is_frozen(module, ["body.*"])


def test_unfreeze_leaves_the_rest_frozen():
    hooks = [Unfreeze("body.weight", at_epoch=1)]
    assert frozen_by_epoch(hooks, 2, initially=BODY | HEAD) == [BODY | HEAD, HEAD | {"body.bias"}]


def test_freeze_leaves_what_the_module_has_frozen():
    assert frozen_by_epoch([Freeze("*", until_epoch=1)], 2, initially=BODY) == [BODY | HEAD, BODY]


def test_resumed_runs_freeze_what_is_due():
    start = TrainState(epoch=2, iteration=2)
    hooks = [Freeze("head.*", 3), Unfreeze("body.*", at_epoch=1)]
    assert frozen_by_epoch(hooks, 4, initially=BODY, start=start) == [HEAD, set()]


def test_a_resumed_run_without_a_freeze_has_frozen_what_another_one_freezes():
    hooks = [Freeze("*"), Freeze("body.*")]
    before, after = Driver(hooks), Driver(hooks[1:])
    before.call("on_train_begin")
    states = HookCalls(hooks, before.run).state_dicts()
    after.call("on_train_begin")
    after.run.frozen = before.run.frozen
    HookCalls(hooks[1:], after.run).load_state_dicts(states)
    assert after.run.frozen == BODY


@pytest.mark.parametrize("unfreeze_first", [False, True])
def test_what_another_hook_has_frozen_stays_unfrozen(unfreeze_first):
    hooks = [Freeze("body.*"), Unfreeze("body.bias", at_epoch=1)]
    hooks = hooks[::-1] if unfreeze_first else hooks
    assert frozen_by_epoch(hooks, 4) == [BODY, *[{"body.weight"}] * 3]


@pytest.mark.parametrize("hook", [Freeze("bdy.*", from_epoch=5), Unfreeze("bdy.*", at_epoch=5)])
def test_a_pattern_without_parameters_is_an_error_at_once(hook):
    with pytest.raises(ConfigError, match=r"no trainable parameter matches 'bdy\.\*'"):
        Driver([hook]).call("on_train_begin")


# GradientNorms


def test_gradient_norms_describe_the_gradients_asked_for():
    hook = GradientNorms(EveryIterations(2))
    driver = Driver([hook], steps=3)
    driver.fit(2)
    assert [(row["epoch"], row["iteration"]) for row in hook.rows] == [(1, 3), (2, 5)]
    flat = np.arange(9.0) - 2
    first = hook.rows[0]
    assert first["norm"] == pytest.approx(np.linalg.norm(flat))
    assert list(first["parameters"]) == ["body.weight", "body.bias", "head.weight", "head.bias"]
    weight = flat[:4]
    assert first["parameters"]["body.weight"] == pytest.approx(
        {"norm": np.linalg.norm(weight), "mean": weight.mean(), "max": np.abs(weight).max()}
    )


def test_gradient_norms_ignore_gradients_that_others_asked_for():
    rare, often = GradientNorms(EveryIterations(3)), GradientNorms(EveryIterations(1))
    Driver([often, rare], steps=4).fit(2)
    assert [row["iteration"] for row in rare.rows] == [4, 7]
    assert [row["iteration"] for row in often.rows] == [2, 3, 4, 5, 6, 7, 8]


def test_gradient_norms_keep_the_last_rows_of_the_last_run():
    hook = GradientNorms(EveryIterations(1), keep=2)
    for _ in range(2):
        Driver([hook], steps=4).fit(2)
        assert [row["iteration"] for row in hook.rows] == [7, 8]


def test_gradient_norms_by_default_are_rare():
    assert GradientNorms().gradients == EveryIterations(100)


# Checkpoint


def numbers(folder):
    return sorted(int(path.name.removeprefix("iteration-")) for path in folder.iterdir())


def test_checkpoints_are_written_and_pruned(tmp_path):
    Driver([Checkpoint(tmp_path / "run", keep=2)], steps=3).fit(4)
    assert numbers(tmp_path / "run") == [9, 12]
    module = body_and_head()
    load_weights(latest(tmp_path / "run"), module)
    assert {p.unique().item() for p in module.parameters()} == {12.0}


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (EveryEpoch(), [3, 6]),
        (EveryIterations(2), [2, 4, 6]),
        (EveryIterations(1), [1, 2, 3, 4, 5, 6]),
        (EveryIterations(4) | EveryEpoch(), [3, 4, 6]),
    ],
    ids=repr,
)
def test_checkpoints_are_written_when_due(tmp_path, every, expected):
    Driver([Checkpoint(tmp_path, every, keep=None)], steps=3).fit(2)
    assert numbers(tmp_path) == expected


def test_a_checkpoint_of_an_epoch_has_its_scores(tmp_path):
    Driver([Checkpoint(tmp_path)], scores=scores(0.25)).fit(1)
    text = (tmp_path / "iteration-00000002" / "state.json").read_text()
    assert '"valid/accuracy": 0.25' in text
    assert '"validations": 1' in text


def test_checkpoints_hold_averaged_weights(tmp_path):
    Driver([Checkpoint(tmp_path)], averaged=99).fit(1)
    module = body_and_head()
    load_weights(latest(tmp_path), module)
    assert module["head"].bias.item() == 99


def test_a_folder_with_later_checkpoints_is_refused(tmp_path):
    Driver([Checkpoint(tmp_path)]).fit(2)
    with pytest.raises(
        ConfigError, match=r"has a checkpoint of iteration 4 already, but this run starts at 0"
    ):
        Driver([Checkpoint(tmp_path)]).fit(2)
    Driver([Checkpoint(tmp_path)], start=TrainState(epoch=2, iteration=4)).fit(3)
    assert numbers(tmp_path) == [2, 4, 6]


class WithExtraState(nn.Linear):
    def get_extra_state(self):
        return {}


def test_state_that_cannot_be_saved_is_an_error_at_once(tmp_path):
    driver = Driver([Checkpoint(tmp_path / "run")])
    driver.run.module["head"] = WithExtraState(2, 1)
    with pytest.raises(ConfigError, match=r"state_dict entry 'head\._extra_state' is a dict"):
        driver.call("on_train_begin")


# Arguments


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: EarlyStopping(0), r"EarlyStopping\(patience=0\): expected an integer of at least 1"),
        (lambda: EarlyStopping(1.5), r"EarlyStopping\(patience=1.5\)"),
        (lambda: Freeze("*", until_epoch=0), r"Freeze\(until_epoch=0\): expected an integer of at least 1"),
        (lambda: Freeze("*", 3, from_epoch=3), r"Freeze\(until_epoch=3\): expected an integer of at least 4"),
        (lambda: Freeze("*", from_epoch=-1), r"Freeze\(from_epoch=-1\): expected an integer of at least 0"),
        (lambda: Unfreeze("*", at_epoch=True), r"Unfreeze\(at_epoch=True\)"),
        (lambda: GradientNorms(5), r"GradientNorms\(every=5\): expected a trigger"),
        (lambda: GradientNorms(keep=0), r"GradientNorms\(keep=0\)"),
        (lambda: Checkpoint("x", every=1), r"Checkpoint\(every=1\): expected a trigger"),
        (lambda: Checkpoint("x", keep=0), r"Checkpoint\(keep=0\): expected an integer of at least 1"),
        (lambda: Checkpoint("nosuch://x"), r"cannot open nosuch://x"),
    ],
)
def test_arguments_are_checked(call, expected):
    with pytest.raises(ConfigError, match=expected):
        call()


# Contract


def hook_classes():
    """Find all hooks of the package, wherever they are defined."""
    for module in pkgutil.walk_packages(sparkdl.__path__, "sparkdl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, todo = [], [Hook]
    while todo:
        cls = todo.pop()
        found.append(cls)
        todo += cls.__subclasses__()
    return [cls for cls in found if cls is not Hook and cls.__module__.startswith("sparkdl.")]


def test_hooks_override_only_what_is_called():
    classes = hook_classes()
    assert {EarlyStopping, Freeze, Unfreeze, GradientNorms, Checkpoint} <= set(classes)
    for cls in classes:
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            if name.startswith("on_"):
                assert hasattr(Hook, name), f"{cls.__name__}.{name} would never be called"
                expected = inspect.signature(getattr(Hook, name)).parameters
                assert list(inspect.signature(method).parameters) == list(expected), f"{cls.__name__}.{name}"


def test_the_base_class_does_nothing():
    methods = [name for name in vars(Hook) if not name.startswith("_") and callable(vars(Hook)[name])]
    assert len(methods) == 13
    for name in methods:
        parameters = list(inspect.signature(getattr(Hook, name)).parameters)[1:]
        assert not getattr(Hook(), name)(*[object()] * len(parameters))
    assert Hook.gradients is None
    assert Hook.unfreezes == ()


def test_the_drivers_state_is_that_of_a_run():
    driver = Driver([])
    assert driver.fit(2) == 4
    assert driver.run.state == replace(TrainState(), epoch=2, iteration=4, samples=4, loss=0.5)


def test_a_snapshot_that_replaces_the_weights_gets_their_dtype():
    run = Driver([]).run
    now = run.snapshot()
    run.replace(Snapshot(now.params * np.float64(2), now.buffers, now.counters))
    assert run.snapshot().params.dtype == np.float32
    with pytest.raises(ConfigError, match=r"params of shape \(3,\), the module of shape \(9,\)"):
        run.replace(Snapshot(now.params[:3], now.buffers, now.counters))
    with pytest.raises(ConfigError, match="buffers of shape"):
        run.replace(Snapshot(now.params, now.params, now.counters))
