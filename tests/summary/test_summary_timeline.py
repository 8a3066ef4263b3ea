import json
import math

import fsspec
import pytest
from support.runs import FakeRun

from sparkdl.exceptions import ConfigError
from sparkdl.summary import Timeline
from sparkdl.train.options.triggers import EveryIterations

START = 1_700_000_000.25


def tasks(partitions=2, shards=2):
    for p in range(partitions):
        phases = {"data": 0.1, "weights_in": 0.05, "compute": 0.2, "gradient_out": 0.05}
        yield {
            "kind": "forward-backward",
            "partition": p,
            "host": f"node{p % 2}",
            "pid": 100 + p,
            "start": START,
            "seconds": 0.4,
            "phases": phases,
        }
    for s in range(shards):
        yield {
            "kind": "parameter-sync",
            "shard": s,
            "host": "node0",
            "pid": 100,
            "start": START + 0.5,
            "seconds": 0.1,
            "phases": {"receive": 0.06, "update": 0.06},
        }
    yield {
        "kind": "driver",
        "start": START - 0.1,
        "seconds": 0.9,
        "phases": {"job1": 0.6, "job2": 0.2, "broadcast": 0.1},
    }


def play(path, iterations=1, **options):
    FakeRun(steps=2).train(Timeline(path, **options), iterations=iterations, tasks=list(tasks()))
    return json.loads(path.read_text())


def spans(events, name=None):
    return [e for e in events if e["ph"] == "X" and name in (None, e["name"])]


def test_rows_are_named(tmp_path):
    events = play(tmp_path / "new" / "trace.json", iterations=2)
    names = {(e["pid"], e["tid"], e["args"]["name"]) for e in events if e["name"].endswith("_name")}
    assert names == {
        (1, 0, "driver"),
        (1, 1, "jobs"),
        (2, 0, "host node0"),
        (2, 1, "partition 0"),
        (2, 1_000_000, "shard 0"),
        (2, 1_000_001, "shard 1"),
        (3, 0, "host node1"),
        (3, 2, "partition 1"),
    }
    assert len([e for e in events if e["name"].endswith("_name")]) == len(names)  # each once


def test_tasks_and_phases(tmp_path):
    events = play(tmp_path / "trace.json")
    task = spans(events, "forward-backward")[0]
    assert (task["ts"], task["dur"]) == (round(START * 1e6), 400_000)
    assert task["args"] == {"iteration": 1, "process": 100}
    row = [e for e in spans(events) if (e["pid"], e["tid"]) == (task["pid"], task["tid"])][1:]
    assert [(e["name"], e["ts"] - task["ts"], e["dur"]) for e in row] == [
        ("data", 0, 100_000),
        ("weights_in", 100_000, 50_000),
        ("compute", 150_000, 200_000),
        ("gradient_out", 350_000, 50_000),
    ]


def test_phases_do_not_reach_beyond_their_task(tmp_path):
    events = play(tmp_path / "trace.json")
    task = spans(events, "parameter-sync")[0]
    update = spans(events, "update")[0]
    assert update["ts"] + update["dur"] == task["ts"] + task["dur"]


def test_the_driver_has_jobs_loss_and_validations(tmp_path):
    events = play(tmp_path / "trace.json", iterations=2)
    (iteration,) = spans(events, "iteration 2")
    assert iteration["args"] == {"epoch": 1, "iteration": 2, "samples": 10, "loss": 0.5, "lr": 0.1}
    assert len(spans(events, "forward-backward job")) == 2
    assert len(spans(events, "publish weights")) == 2
    assert [e["args"] for e in events if e["ph"] == "C"] == [{"loss": 1.0}, {"loss": 0.5}]
    (validation,) = spans(events, "validation val")
    assert validation["args"] == {"accuracy": pytest.approx(2 / 3)}


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        ({"first": 2, "last": 3}, [2, 3]),
        ({"first": 5}, [5, 6]),
        ({"every": EveryIterations(2)}, [2, 4, 6]),
        ({"every": EveryIterations(2), "last": 4}, [2, 4]),
    ],
)
def test_the_range(tmp_path, options, recorded):
    events = play(tmp_path / "trace.json", iterations=6, **options)
    assert [e["args"]["iteration"] for e in spans(events) if "loss" in e["args"]] == recorded


def test_a_hundred_iterations_by_default(tmp_path):
    path = tmp_path / "trace.json"
    FakeRun(steps=1000).train(Timeline(path), iterations=120, tasks=list(tasks(1, 0)))
    assert len(spans(json.loads(path.read_text()), "forward-backward")) == 100


def test_it_may_be_read_before_the_end(tmp_path):
    path = tmp_path / "trace.json"
    hook, run = Timeline(path), FakeRun()
    hook.on_train_begin(run)
    json.loads(path.read_text() + "]")
    run.iterate(hook, tasks=list(tasks()))
    assert spans(json.loads(path.read_text() + "]"), "compute")  # readers supply the end themselves
    hook.on_train_end(run)
    json.loads(path.read_text())


def test_a_loss_that_is_nan_is_still_json(tmp_path):
    path = tmp_path / "trace.json"
    FakeRun().train(Timeline(path), iterations=1, tasks=list(tasks()), loss=math.nan)
    events = json.loads(path.read_text())
    assert spans(events, "iteration 1")[0]["args"]["loss"] is None
    assert not [e for e in events if e["ph"] == "C"]


def test_iterations_without_tasks(tmp_path):
    path = tmp_path / "trace.json"
    FakeRun().train(Timeline(path), iterations=2)
    assert not spans(json.loads(path.read_text()))


def test_remote_files():
    run = FakeRun()
    run.train(Timeline("memory://traces/run.json"), iterations=1, tasks=list(tasks()))
    assert spans(json.loads(fsspec.filesystem("memory").cat_file("/traces/run.json")), "compute")


@pytest.mark.parametrize("options", [{"first": 0}, {"first": 3, "last": 2}])
def test_a_range_that_is_none(tmp_path, options):
    with pytest.raises(ConfigError, match="1 <= first <= last"):
        Timeline(tmp_path / "x", **options)


def test_the_same_hook_serves_two_runs(tmp_path):
    hook = Timeline(tmp_path / "trace.json")
    for _ in range(2):
        FakeRun().train(hook, iterations=1, tasks=list(tasks()))
        events = json.loads((tmp_path / "trace.json").read_text())
        assert {"driver", "partition 0"} <= {e["args"].get("name") for e in events}


def test_a_path_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    for path, problem in (
        (tmp_path, "is a folder, expected a file"),
        (tmp_path / "file" / "trace.json", "file is a file, expected a folder"),
    ):
        with pytest.raises(ConfigError, match=f"^timeline='.*' cannot be written: .*{problem}"):
            Timeline(path)
    Timeline(tmp_path / "new" / "deeper" / "trace.json")
    Timeline("/dev/null")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="no permission to write to"):
        Timeline(tmp_path / "trace.json")
