import json
import math
from datetime import datetime
from functools import partial

import fsspec
import pytest
import torch
from support.runs import FakeRun
from torch import nn
from torch.nn import functional as nnf

from sparkdl.exceptions import ConfigError
from sparkdl.optim import ParamGroup, optimizer_spec
from sparkdl.summary import JsonLines
from sparkdl.summary.params import params
from sparkdl.train.options.schedule import polynomial
from sparkdl.train.options.triggers import EveryEpoch, EveryIterations


def lines(path):
    """Return what iterations and validations wrote."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if row["kind"] not in ("begin", "end")]


def frame_of(path):
    """Return the first and the last line."""
    rows = path.read_text().splitlines()
    return json.loads(rows[0]), json.loads(rows[-1])


def test_the_file_says_how_the_run_began_and_ended(tmp_path):
    path = tmp_path / "run.jsonl"
    FakeRun(name="digits").train(JsonLines(path), iterations=2)
    begin, end = frame_of(path)
    assert (begin["kind"], begin["name"], begin["iteration"]) == ("begin", "digits", 0)
    assert datetime.fromisoformat(begin["time"]) <= datetime.fromisoformat(end["time"])
    assert (end["kind"], end["status"], end["reason"]) == ("end", "FINISHED", "end_when")


def test_the_settings_tell_optimizer_rate_loss_and_columns(tmp_path):
    path = tmp_path / "run.jsonl"
    heavy = nn.CrossEntropyLoss(torch.tensor([1.0, 3.0]), label_smoothing=0.1)
    falling = polynomial(30)
    run = FakeRun(optimizer=lambda p: torch.optim.AdamW(p, weight_decay=0.1), loss=heavy, schedule=falling)
    run.train(JsonLines(path), iterations=1)
    told = frame_of(path)[0]["settings"]
    assert told["optimizer"] == "AdamW(lr=0.001, weight_decay=0.1)"
    assert told["learning_rate"] == torch.optim.AdamW([torch.ones(1)]).defaults["lr"]
    assert told["loss"] == "CrossEntropyLoss(weight=[1.0, 3.0], label_smoothing=0.1)"
    assert told["schedule"] == "PerIteration(factory=PolynomialLR(total_iters=30, power=1.0))"
    assert told["features"] == "[features]"


def test_several_groups_and_optimizers_are_told(tmp_path):
    groups = [ParamGroup("0.*", lr=0.5), ParamGroup("2.*", momentum=0.9)]
    run = FakeRun(loss=partial(nnf.cross_entropy, label_smoothing=0.1))
    run.optimizer = optimizer_spec(partial(torch.optim.SGD, lr=0.1), run.module, groups)[0]
    told = params(run)
    assert told["learning_rate"] == "[0.5, 0.1]"
    assert told["loss"] == "cross_entropy(label_smoothing=0.1)"
    two = {"0.*": partial(torch.optim.SGD, lr=0.1), "*": torch.optim.Adam}
    run.optimizer = optimizer_spec(two, run.module)[0]
    assert params(run)["optimizer"] == "SGD(lr=0.1) + Adam(lr=0.001)"


def test_a_failed_run_says_why(tmp_path):
    path = tmp_path / "run.jsonl"
    with pytest.raises(TypeError):
        FakeRun().train(JsonLines(path), iterations=1, samples=object())
    assert frame_of(path)[1]["status"] == "FAILED"


def test_iterations_and_validations_in_order(tmp_path):
    path = tmp_path / "new" / "run.jsonl"
    FakeRun(steps=2).train(JsonLines(path), iterations=4)
    rows = lines(path)
    assert [(row["kind"], row["iteration"]) for row in rows] == [
        ("iteration", 1),
        ("iteration", 2),
        ("validation", 2),
        ("iteration", 3),
        ("iteration", 4),
        ("validation", 4),
    ]
    assert rows[1]["phases"]["compute"] == 0.3
    assert rows[5] == {
        "kind": "validation",
        "epoch": 2,
        "iteration": 4,
        "name": "val",
        "accuracy": pytest.approx(0.8),
    }


def test_the_lines_are_those_of_the_history(tmp_path):
    run = FakeRun(steps=2)
    run.train(JsonLines(tmp_path / "a.jsonl"), iterations=5)
    run.history.to_jsonl(tmp_path / "b.jsonl")
    assert lines(tmp_path / "a.jsonl") == lines(tmp_path / "b.jsonl")


def test_nan_is_null(tmp_path):
    path = tmp_path / "run.jsonl"
    FakeRun().train(JsonLines(path), iterations=1, loss=math.nan, lr=math.inf)
    assert "NaN" not in path.read_text()
    assert lines(path)[0]["loss"] is None
    assert lines(path)[0]["lr"] is None


def test_lines_are_there_at_once(tmp_path):
    path = tmp_path / "run.jsonl"
    hook, run = JsonLines(path), FakeRun()
    hook.on_train_begin(run)
    run.iterate(hook)
    assert len(lines(path)) == 1
    hook.on_train_end(run)


def test_lines_wait_for_the_trigger_and_none_is_lost(tmp_path):
    path = tmp_path / "run.jsonl"
    hook, run = JsonLines(path, every=EveryIterations(3)), FakeRun(steps=100)
    hook.on_train_begin(run)
    found = []
    for _ in range(4):
        run.iterate(hook)
        found.append(len(lines(path)))
    hook.on_train_end(run)
    assert found == [0, 0, 3, 3]
    assert len(lines(path)) == 4


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        (b'{"kind": "iteration"}\n{"kind": "iterat', 1),
        (b'{"kind": "iteration"}\n{"kind": "iteration"}', 2),
        (b'{"kind": "iteration"}\n', 1),
        (b'{"kind": "it', 0),
        (b"", 0),
    ],
)
def test_a_file_cut_in_a_line_is_mended(tmp_path, before, kept):
    path = tmp_path / "run.jsonl"
    path.write_bytes(before)
    FakeRun().train(JsonLines(path), iterations=1)
    assert len(lines(path)) == kept + 1


def test_what_somebody_else_wrote_is_kept(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text("notes")
    FakeRun().train(JsonLines(path), iterations=1)
    assert path.read_text().startswith('notes\n{"kind"')


def test_remote_files_are_copied_and_appended_to():
    store = fsspec.filesystem("memory")
    for _ in range(2):
        FakeRun().train(JsonLines("memory://logs/run.jsonl", every=EveryEpoch()), iterations=2)
    assert len(store.cat_file("/logs/run.jsonl").splitlines()) == 2 * (2 + 2)


def test_remote_files_are_copied_while_the_run_goes_on(monkeypatch):
    monkeypatch.setattr("sparkdl.train.hooks.target._PUSH_SECONDS", 0.0)
    store = fsspec.filesystem("memory")
    hook, run = JsonLines("memory://going/run.jsonl"), FakeRun()
    hook.on_train_begin(run)
    run.iterate(hook)
    hook._target._due = 0.0
    run.iterate(hook)
    assert len(store.cat_file("/going/run.jsonl").splitlines()) == 1 + 2
    hook.on_train_end(run)


def test_a_store_that_fails_later_is_a_warning_and_the_lines_are_kept(monkeypatch):
    hook, run = JsonLines("memory://failing/run.jsonl"), FakeRun()
    hook.on_train_begin(run)
    run.iterate(hook)
    local = hook._target._local

    def broken(*_):
        raise OSError("no route to store")

    monkeypatch.setattr(hook._target._store, "put_file", broken)
    with pytest.warns(UserWarning, match="failing/run.jsonl") as warned:
        hook.on_train_end(run)
    messages = [str(w.message) for w in warned]
    assert "no route to store" in messages[0]
    assert str(local.parent) in messages[1]
    assert len(lines(local)) == 1


def test_a_store_that_fails_at_once_is_an_error(monkeypatch):
    hook = JsonLines("memory://failing/run.jsonl")

    def broken(*_):
        raise PermissionError("denied")

    monkeypatch.setattr(hook._target._store, "put_file", broken)
    with pytest.raises(PermissionError, match="denied"):
        hook.on_train_begin(FakeRun())


def test_an_unknown_store_is_named():
    with pytest.raises(ConfigError, match=r"path='carrier-pigeon://x/y': .*carrier-pigeon"):
        JsonLines("carrier-pigeon://x/y")


def test_file_addresses_are_local(tmp_path):
    FakeRun().train(JsonLines(f"file://{tmp_path}/run.jsonl"), iterations=1)
    assert len(lines(tmp_path / "run.jsonl")) == 1
