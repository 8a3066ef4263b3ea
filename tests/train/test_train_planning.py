"""Forecasts follow from what a rehearsal measured; a step's parts add up. No JVM."""

from __future__ import annotations

import json
import os
import tomllib
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.errors import PySparkException
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl.cli.submit import resources
from sparkdl.exceptions import ConfigError
from sparkdl.nn.batch import Batch
from sparkdl.nn.numerics import Numerics, Replica
from sparkdl.nn.objective import LossObjective
from sparkdl.nn.parameters import layout_of
from sparkdl.train import ClusterPlan, Elastic, Hook, plan
from sparkdl.train.demand import Demand
from sparkdl.train.history import History
from sparkdl.train.planning import probe
from sparkdl.train.planning import request as rehearsals
from sparkdl.train.planning.advice import _TAKES, advice
from sparkdl.train.planning.cluster_plan import make_plan
from sparkdl.train.planning.costs import Driver, moves, worth
from sparkdl.train.planning.layers import profile_layers
from sparkdl.train.planning.model import Curve, FitTimes, Line, Rehearsal, StepModel
from sparkdl.train.planning.probe import MemoryWatch, executors_of, look
from sparkdl.train.planning.profile import layer_events, parts_of
from sparkdl.train.planning.rehearsal import Stage

MB = 1_000_000
ROW = 1e-3  # seconds of work
UPDATE, JOB = 4e-3, 0.1
WEIGHTS = 2 * MB


def fit(ranks: int, rows: float, sync: float, slower: float = 1.0, **other: Any) -> FitTimes:
    """Return what a fit of a known law would measure."""
    group, work = 20, slower * (2e-3 + ROW * rows)
    known: dict[str, Any] = {
        "threads": 1,
        "exchange": "replicated",
        "transport": "direct",
        "group": group,
        "seconds": work + sync + JOB / group * Driver().seconds(ranks, 1, 1) / Driver().seconds(2, 1, 1),
        "work": work,
        "noise": 0.01,
        "python_bytes": int(400 * MB + 0.1 * MB * rows),
        "jvm_bytes": 300 * MB,
    }
    return FitTimes(ranks=ranks, rows=rows, **known | other)


def rehearsal(**other: Any) -> Rehearsal:
    known: dict[str, Any] = {
        "alone": [fit(1, rows, UPDATE) for rows in (25, 100, 200)],
        "together": [fit(2, 100, UPDATE + 6e-3)],
        "halved": None,
        "job": JOB,
        "nbytes": WEIGHTS,
        "state_bytes": 0,
        "row_bytes": 100.0,
        "executors": 2,
        "cores": 1,
        "host_cores": 2,
        "one_host": False,
        "sample_rows": 800,
    }
    return Rehearsal(**known | other)


def test_a_line_has_no_negative_parts() -> None:
    assert Line.through([1, 2, 4], [3, 5, 9]).at(8) == pytest.approx(17)
    assert Line.through([1, 2, 4], [4, 3, 2]).each == 0
    assert Line.through([1, 2, 4], [0.5, 2.5, 6.5]).fixed == 0
    assert Line.through([3], [6]).at(5) == pytest.approx(10)


def test_between_points_it_is_as_measured_and_beyond_them_along_a_line() -> None:
    curve = Curve.through([4, 1, 2], [6.5, 0.5, 2.5])
    assert [curve.at(rows) for rows in (1, 2, 4)] == pytest.approx([0.5, 2.5, 6.5])
    assert curve.at(3) == pytest.approx(4.5)
    assert curve.at(8) == pytest.approx(13)
    assert Curve.through([1, 2], [3, 5]).at(4) == pytest.approx(9)
    assert Curve.through([1, 1, 3], [2, 4, 5]).at(1) == pytest.approx(3)


def test_an_exchange_that_was_not_measured_is_derived_from_the_one_that_was() -> None:
    model = StepModel(rehearsal(nbytes=20 * MB))
    other = model.chosen("sharded")
    assert other.exchange == "sharded"
    assert model.chosen("replicated") is model.usual
    # Half of the update goes, and half of the sum; two ranks move the same bytes.
    assert UPDATE / 2 < model.usual.seconds - other.seconds < UPDATE / 2 + 3e-3
    assert model.step(2, 200, other).sync < model.step(2, 200).sync
    assert other.python_bytes < model.usual.python_bytes
    assert model.memory(2, 200, 800, other)[1] == pytest.approx(other.python_bytes, rel=0.01)


def test_what_was_measured_is_forecast_as_it_was() -> None:
    model = StepModel(rehearsal())
    together = model.step(2, 200)
    assert together.work == pytest.approx(0.102)
    assert together.sync == pytest.approx(UPDATE + 6e-3, rel=0.02)
    group = JOB / 0.03  # seconds: longer than the plan wants, so that 3 % of them go into the job
    assert together.job == pytest.approx(JOB / int(group / (together.work + together.sync)), rel=0.01)
    alone = model.step(1, 200)
    assert alone.work == pytest.approx(0.202)
    assert alone.sync == pytest.approx(UPDATE, rel=0.02)
    assert together.error < model.step(16, 200).error


def test_sync_grows_as_the_cost_model_says_and_work_shrinks() -> None:
    model = StepModel(rehearsal())
    steps = {n: model.step(n, 200) for n in (2, 4, 8)}
    assert steps[4].work == pytest.approx(2e-3 + ROW * 50)
    more = [steps[n].sync - UPDATE for n in (2, 4, 8)]
    # The replicated plan sends a gradient to each other rank.
    assert more[1] / more[0] == pytest.approx(3, rel=0.3)
    assert more[2] / more[0] == pytest.approx(7, rel=0.4)


def test_executors_beyond_the_cores_of_their_machine_take_turns() -> None:
    crowded = StepModel(rehearsal(one_host=True))
    own = StepModel(rehearsal())
    assert crowded.step(2, 200).work == pytest.approx(own.step(2, 200).work)
    assert crowded.step(4, 200).work == pytest.approx(2 * own.step(4, 200).work)


def test_work_that_is_slower_beside_others_is_so_in_forecasts() -> None:
    found = rehearsal(together=[fit(2, 100, UPDATE + 6e-3, slower=1.3)], one_host=True)
    model = StepModel(found)
    assert model.step(2, 200).work == pytest.approx(1.3 * 0.102, rel=0.01)
    assert model.step(1, 200).work == pytest.approx(0.202, rel=0.01)
    assert model.step(4, 200).work == pytest.approx(2 * 1.3 * 0.052, rel=0.01)


def test_memory_has_activations_gradients_and_rows() -> None:
    model = StepModel(rehearsal())
    jvm, python = model.memory(1, 200, 800)
    assert jvm == 300 * MB
    assert python == pytest.approx(420 * MB, rel=0.01)
    assert model.memory(2, 200, 1600)[1] == pytest.approx(410 * MB, rel=0.01)
    assert model.memory(4, 200, 3200)[1] == pytest.approx(405 * MB + 2 * WEIGHTS, rel=0.01)
    assert model.memory(2, 200, 2 * MB)[1] - model.memory(2, 200, 1600)[1] == pytest.approx(
        100 * MB, rel=0.01
    )


def planned(
    found: Rehearsal, executors: Any = range(1, 65), price: float = 0.0, steps_per_batch: int = 1
) -> ClusterPlan:
    return make_plan(
        StepModel(found),
        dict.fromkeys(executors, "replicated"),
        rows=100_000,
        batch=200,
        steps_per_batch=steps_per_batch,
        price=price,
    )


def test_the_best_number_is_the_last_that_pays() -> None:
    found = planned(rehearsal(), price=0.1)
    seconds = {each.executors: each.epoch_seconds for each in found.estimates}
    best = found.best.executors
    assert 2 < best < 64
    assert worth(seconds[best - 1], seconds[best], best - 1, best)
    assert not worth(seconds[best], seconds[best + 1], best, best + 1)
    assert found.best.cost == pytest.approx(0.1 * best * seconds[best] / 3600)
    text = str(found)
    assert "best" in text
    assert f"batch_size={found.best.batch}" in text
    json.dumps(found.to_json())
    assert found.resources()["executors"] == best
    assert "task.cores = 1" in found.job_table()


def test_a_plan_costs_what_the_cores_of_all_executors_cost_for_an_epoch() -> None:
    for cores in (1, 4):
        for each in planned(rehearsal(cores=cores), (1, 3), price=0.5).estimates:
            hours = each.epoch_seconds / 3600
            assert each.cost == pytest.approx(0.5 * cores * each.executors * hours)


def test_steps_that_take_several_batches_are_fewer() -> None:
    (one,) = planned(rehearsal(), (1,)).estimates
    (three,) = planned(rehearsal(), (1,), steps_per_batch=3).estimates
    assert one.epoch_seconds == pytest.approx(100_000 / 200 * one.step_seconds)
    assert three.epoch_seconds == pytest.approx(167 * three.step_seconds)  # of 600 rows, the last of 400
    assert three.step_seconds == StepModel(rehearsal()).step(1, 600).seconds


def test_a_plan_is_a_resource_profile_with_shares_of_gpus() -> None:
    found = planned(rehearsal(cores=4, halved=fit(4, 50, 0.0, threads=2)))
    assert found.cores_per_task == 2
    profile = found.resource_profile(gpus=0.5)
    task = {name: each.amount for name, each in profile.taskResources.items()}
    executor = {name: each.amount for name, each in profile.executorResources.items()}
    assert task == {"cpus": 2, "gpu": 0.5}
    assert (executor["cores"], executor["gpu"]) == (4, 1)
    asked = found.resources()
    assert (f"{executor['memory']}m", f"{executor['memoryOverhead']}m") == (
        asked["memory"],
        asked["overhead"],
    )
    assert "gpu" not in found.resource_profile().taskResources
    for wrong in (0.7, 1.5, -1):
        with pytest.raises(ConfigError, match="expected a whole number, or a share of at most 0.5"):
            found.resource_profile(gpus=wrong)
    table = tomllib.loads(found.job_table())
    assert resources.read(table["resources"], "job.toml")["task.cores"] == 2


def test_a_faster_exchange_is_recommended() -> None:
    usual = fit(2, 100, UPDATE + 60e-3)
    sharded = fit(2, 100, UPDATE / 2 + 6e-3, exchange="sharded")
    best = planned(rehearsal(together=[usual, sharded]), executors=(1, 2)).best
    assert best.exchange == "sharded"
    near = fit(2, 100, UPDATE + 59e-3, exchange="sharded")
    assert planned(rehearsal(together=[usual, near]), executors=(1, 2)).best.exchange == "replicated"


def test_two_tasks_beside_each_other_are_recommended_where_they_are_faster() -> None:
    whole = rehearsal(cores=2, alone=[fit(1, r, UPDATE, threads=2) for r in (25, 100)])
    faster = fit(4, 50, 0.0, threads=1)
    assert planned(whole).cores_per_task == 2
    assert planned(rehearsal(cores=2, halved=faster)).cores_per_task == 1


def test_the_cost_model_moves_what_the_plans_move() -> None:
    assert moves("replicated", 100, 4).nbytes == 300
    assert moves("sharded", 100, 4).nbytes == 150
    assert moves("replicated", 100, 1).nbytes == moves("sharded", 100, 1).nbytes == 0


# -- a rehearsal in this process ------------------------------------------------------------------------


class Never(Hook):
    """Fails if it is called."""

    def on_train_begin(self, run: Any) -> None:
        raise AssertionError("a rehearsal calls no hook of the user")


def trainer(**options: Any) -> Trainer:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    return Trainer(
        net,
        loss=nn.MSELoss(),
        optimizer=partial(torch.optim.SGD, lr=0.01),
        **{"batch_size": 16, "progress": False} | options,
    )


def rows(spark: Any, number: int = 400) -> Dataset:
    x = np.random.default_rng(0).normal(size=(number, 4)).astype(np.float32)
    return Dataset.from_numpy(x, x.sum(1, keepdims=True), spark=spark)


def test_a_plan_trains_on_a_sample_and_leaves_the_trainer_as_it_was(spark: Any) -> None:
    made = trainer(hooks=[Never()])
    before = [p.clone() for p in made.module.parameters()]
    told: list[str] = []
    with rows(spark) as data:
        found = plan(made, data, rows=10_000, executors=(1, 2, 4), seconds=0.2, tell=told.append)
        assert data._store is None
    assert [each.executors for each in found.estimates] == [1, 2, 4]
    assert all(each.epoch_seconds > 0 and each.nbytes > 10 * MB for each in found.estimates)
    assert found.rehearsal.sample_rows == 128
    assert any("rank" in doing for doing in told)
    assert made.result is None
    assert all(map(torch.equal, before, made.module.parameters()))


def test_a_rehearsal_finds_the_law_of_the_steps_that_it_has_timed(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paces = (10.0, 1.0, 1.3, 1.1)  # of a fit's groups: the first one warms up

    def run(stage: Stage, sample: Dataset, batch: int, steps: int, options: Any, hooks: Any = ()) -> Any:
        """Take no step, but say how long each would have taken."""
        share, group = batch / len(sample.store().partitions), options["iterations_per_job"]
        history = History()
        for n in range(steps):
            pace = paces[n // group] if group > 1 and steps == len(paces) * group else 1.1
            work = pace * (2e-3 + ROW * share)
            phases = {"weights_in": work / 8, "data": work / 8, "compute": work / 2, "gradient_out": work / 4}
            seconds = work + JOB / group
            row = {"epoch": 1, "iteration": n + 1, "samples": batch, "direct": 1, "loss": 0.0, "lr": 0.0}
            history.append(
                row | {"seconds": seconds, "phases": phases | {"launch": JOB}, "bytes": {"state": 7}}
            )
        return history, MemoryWatch()

    monkeypatch.setattr(Stage, "run", run)
    with rows(spark) as data:
        found = plan(trainer(), data, rows=10_000, executors=(1, 2), seconds=2.0).rehearsal
    for each in (*found.alone, *found.together):
        step = 2e-3 + ROW * each.rows
        assert each.group > 1
        assert each.work == pytest.approx(step * (1.0 + 1.3 + 1.1) / 3)
        assert each.seconds == pytest.approx(1.1 * step + JOB / each.group)  # of the group in the middle
        assert each.noise == pytest.approx(step * (1.3 - 1.0) / 2 / each.seconds)
        assert each.transport == "direct"
    assert [each.rows for each in found.alone] == [2, 8, 16]  # of batches of 16
    assert {each.rows for each in found.together} == {8}
    assert found.job == pytest.approx(JOB)
    assert (found.state_bytes, found.row_bytes) == (7, 5 * 4 + 8)  # numbers and position


@pytest.mark.parametrize(
    ("options", "words"),
    [({"executors": ()}, "executors"), ({"price": -1.0}, "price"), ({"rows": 0}, "rows")],
)
def test_what_cannot_be_planned(spark: Any, options: Any, words: str) -> None:
    with rows(spark) as data, pytest.raises(ConfigError, match=words):
        plan(trainer(), data, **options)


@pytest.mark.parametrize("kind", ["plan", "profile"])
def test_the_first_fit_of_a_script_answers(
    spark: Any, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, trace = tmp_path / "answer.json", tmp_path / "trace.json"
    request = rehearsals.Request(kind=kind, answer=str(answer), rows=1000, seconds=0.2, trace=str(trace))
    (variable,) = request.variable().items()
    monkeypatch.setattr(rehearsals, "in_task", lambda: False)
    monkeypatch.setenv(*variable)
    with rows(spark) as data:
        with pytest.raises(SystemExit) as ended:
            trainer().fit(data)
        assert ended.value.code == 0
        assert trainer().fit(data).state.iteration == 25  # the second one is a fit
    found = json.loads(answer.read_text())
    if kind == "plan":
        assert "executors" in found["text"]
        return
    parts = found["parts"]
    assert sum(parts.values()) == pytest.approx(found["facts"]["step"], rel=0.5)
    assert {layer["name"] for layer in found["layers"]} >= {"0", "1", "2"}
    assert found["bottleneck"] in parts
    names = {event["name"] for event in json.loads(trace.read_text())}
    assert {"forward-backward", "0", "process_name"} <= names


@pytest.mark.parametrize("told", ["yes", "[" * 100_000, '{"kind": "plan", "answer": "a", "executors": 5}'])
def test_a_request_that_is_none_says_so(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv(rehearsals.VARIABLE, told)
    with pytest.raises(ConfigError, match="sparkdl plan"):
        rehearsals.take()


# -- profiles -------------------------------------------------------------------------------------------


def test_parts_of_a_step_add_up() -> None:
    phases = {"data": {0: [9.0, 1.0], 1: [9.0, 1.0]}, "compute": {0: [9.0, 4.0], 1: [9.0, 6.0]}}
    found = parts_of(phases, step=10.0, job=0.5, skip=1)
    assert found["rows"] == 1.0
    assert found["forward and backward"] == 5.0
    assert found["waiting for the slowest rank"] == 1.0
    assert found["exchange"] == pytest.approx(2.5)
    assert sum(found.values()) == pytest.approx(10.0)
    overlapping = parts_of(phases, step=3.75, job=0.5, skip=1)
    assert sum(overlapping.values()) == pytest.approx(3.75)
    assert overlapping["forward and backward"] == pytest.approx(2.5)
    told = advice(found, [], trainer().config, "replicated", "direct", 2)
    assert told[0].startswith("Forward and backward take 50% of a step. Use more executors or cores")
    assert "gradient_codec" in told[1]


def test_one_rank_gets_no_advice_on_others() -> None:
    parts = {"exchange": 5.0, "waiting for the slowest rank": 5.0, "update": 5.0, "scheduling": 5.0}
    told = advice(parts, [], trainer().config, "replicated", "direct", 1)
    assert [text.split(" ")[0] for text in told] == ["The", "Starting"]
    assert not any(word in text for word in ("sharded", "exchange", "fewer executors") for text in told)
    assert len(advice(parts, [], trainer().config, "replicated", "direct", 2)) == 4


def test_advice_is_whole_sentences() -> None:
    layers = [{"name": "body.0", "kind": "Linear", "forward": 3.0, "backward": 1.0}]
    for exchange in ("replicated", "sharded", "driver"):
        for name in _TAKES:
            (told,) = advice({name: 1.0}, layers, trainer().config, exchange, "shuffle", 4)
            assert told[0].isupper()
            assert told.endswith(".")


def test_layers_have_their_forward_and_their_backward() -> None:
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(inplace=True), nn.Linear(256, 1))
    replica = Replica(net.train(), layout_of(net), Numerics(), "cpu")
    batch = Batch(torch.randn(128, 64), torch.randn(128, 1), None, 128)
    layers, spans = profile_layers(replica, batch, LossObjective(nn.MSELoss()), None)
    found = {layer.name: layer for layer in layers}
    assert {"0", "1", "2"} <= found.keys()
    assert all(found[name].forward > 0 and found[name].backward > 0 for name in ("0", "1", "2"))
    assert found["0"].kind == "Linear"
    assert found["0"].parameters == 64 * 256 + 256
    events = layer_events(
        [{"name": s.name, "start": s.start, "seconds": s.seconds, "backward": s.backward} for s in spans]
    )
    assert {event["tid"] for event in events if event["ph"] == "X"} == {1, 2}


def test_a_process_sees_its_own_memory() -> None:
    block = np.ones(50 * MB, np.uint8)
    before = look(reset=True)
    assert before.python_bytes > 50 * MB
    del block
    assert look(reset=True).python_bytes > 0
    assert before.cores >= 1


def test_an_executor_is_its_jvm_and_the_python_processes_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.getpid()
    jvm, daemon, other = own + 1, own + 2, own + 3
    processes = {
        1: ("init", 0, 1),
        jvm: ("java", 1, 300),
        daemon: ("python", jvm, 20),
        own: ("python", daemon, 50),
        other: ("python", daemon, 40),
        own + 4: ("java", daemon, 1000),  # what a task has started
        own + 5: ("python", own + 4, 2000),
        own + 6: ("java", 1, 4000),  # another executor
        own + 7: ("python", own + 6, 8000),
    }
    for pid, (name, parent, size) in processes.items():
        folder = tmp_path / str(pid)
        folder.mkdir()
        text = f"Name:\t{name}\nPPid:\t{parent}\nVmHWM:\t{size + 5} kB\nVmRSS:\t{size} kB\n"
        (folder / "status").write_text(text)
    (tmp_path / "self").symlink_to(str(own))
    (tmp_path / "net").mkdir()
    monkeypatch.setattr(probe, "_PROC", tmp_path)

    found = look(reset=True)
    assert (found.jvm, found.jvm_bytes) == (jvm, 300 << 10)
    assert found.python_bytes == (25 + 55 + 45) << 10
    cleared = {int(path.parent.name): path.read_text() for path in tmp_path.glob("[0-9]*/clear_refs")}
    assert cleared == dict.fromkeys((own, daemon, other), "5")  # which proc(5) gives for the peak


def test_a_job_that_fails_tells_of_no_executor_and_anything_else_is_an_error() -> None:
    told: list[Any] = []

    def access(error: Exception) -> Any:
        def run(task: Any) -> Any:
            raise error

        return SimpleNamespace(describe=told.append, run_everywhere=run)

    assert executors_of(access(PySparkException("the job failed"))) == []
    with pytest.raises(ValueError, match="^not of Spark$"):
        executors_of(access(ValueError("not of Spark")))
    assert told[1::2] == [None, None]  # what the job was called goes whatever comes


# -- elastic="plan" ---------------------------------------------------------------------------------------


def follow(law: Any, start: int, **options: Any) -> tuple[int, list[int]]:
    """Run a cluster that gives what is asked for; return the executors at the end, and the wishes."""
    asked: list[int] = []
    clock = count()
    demand = Demand(
        Elastic(asks=True, settle=1.0, **options),
        lambda total: asked.append(total) or True,  # type: ignore[func-returns-value]
        WEIGHTS,
        clock=lambda: float(next(clock)),
    )
    now = start
    for _ in range(4000):
        work, rest = law(now)
        demand.add(now, work + rest, work)
        now = demand.decide() or now
    return now, asked


def test_a_run_asks_for_executors_while_they_pay() -> None:
    found, asked = follow(lambda n: (1.0 / n, 0.05), 1)
    assert 4 < found < 32
    assert asked == sorted(asked)
    assert follow(lambda n: (1.0 / n, 0.05), 1, max_partitions=3)[0] == 3


def test_executors_that_bring_nothing_are_given_back() -> None:
    assert follow(lambda n: (0.1 / n, 0.2), 4)[0] == 1
    assert follow(lambda n: (0.1 / n, 0.2), 4, min_partitions=2)[0] == 2
    # Two cores for all: a third executor looks good until it was tried.
    assert follow(lambda n: (max(1.0 / n, 0.5), 0.01), 1)[0] == 2
    # Work that takes as long with few rows as with many: two executors without the third one show that.
    assert follow(lambda n: (0.1, 0.15 + 0.01 * n), 3, max_partitions=3) == (1, [2, 1])
    assert follow(lambda n: (0.06 + 0.04 / n, 0.02), 4)[0] == 1


def test_short_steps_try_fewer_executors() -> None:
    # The fixed part of a small module's passes: with three ranks on few cores it is most of a step.
    assert follow(lambda n: (0.008, 0.004), 3, max_partitions=3) == (1, [2, 1])
    # If the work does shrink with the rows, the run asks for the executor again, once.
    assert follow(lambda n: (0.024 / n, 0.001), 3, max_partitions=3) == (3, [2, 3])
    # Longer steps keep what they have.
    assert follow(lambda n: (0.6 / n, 0.05), 3, max_partitions=3) == (3, [])


def test_a_cluster_without_more_is_not_asked_again() -> None:
    demand, asked, now = None, [], iter(range(10_000))
    demand = Demand(
        Elastic(asks=True, settle=1.0),
        lambda total: asked.append(total) or True,
        WEIGHTS,
        clock=lambda: float(next(now)),
    )
    for _ in range(500):
        demand.add(2, 0.6, 0.5)
        demand.decide()
    assert asked == [3]
    for _ in range(500):  # the third one comes after all
        demand.add(3, 0.4, 0.3)
        demand.decide()
    assert asked == [3, 4]


def test_the_option_says_plan() -> None:
    assert trainer(elastic="plan").config.elastic == "plan"
    with pytest.raises(ConfigError, match="'plan' or None"):
        trainer(elastic="more")
