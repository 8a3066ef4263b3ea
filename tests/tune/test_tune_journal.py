"""A search that is resumed is the one that was begun: choices, rows, Trainers, one program at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from support import searches
from torch import nn

from sparkdl import Trainer, tune
from sparkdl.exceptions import ConfigError, SparkdlWarning
from sparkdl.saved.digest import stable_digest
from sparkdl.tune.running.journal import Journal
from sparkdl.tune.space import Space


def test_choices_that_print_alike_are_different_trials(spark: Any) -> None:
    """Beside torch: with all rows in one batch and no step, the loss is that of the first weights."""
    smoothings = [0.0, 0.1, 0.2]
    space = {"loss": [nn.CrossEntropyLoss(label_smoothing=s) for s in smoothings]}

    def train(params: dict[str, Any]) -> Trainer:
        sgd = partial(torch.optim.SGD, lr=0.0)
        return Trainer(nn.Linear(6, 2), loss=params["loss"], optimizer=sgd, batch_size=96)

    with searches.rows(spark) as data, pytest.warns(SparkdlWarning, match="trials have different losses"):
        found = tune.Tuner(train, space, search="grid", max_epochs=1, progress=False).fit(data)
    torch.manual_seed(0)
    output = nn.Linear(6, 2)(torch.from_numpy(searches.FEATURES))
    label = torch.from_numpy(searches.LABELS)
    expected = [nn.functional.cross_entropy(output, label, label_smoothing=s).item() for s in smoothings]
    assert sorted(trial.reports[0]["loss"] for trial in found.trials) == pytest.approx(sorted(expected))
    assert len({trial.params["loss"] for trial in found.trials}) == 3
    assert found.get_best().params["loss"] in space["loss"]


def test_long_arrays_and_equal_numbers_are_told_apart() -> None:
    arrays, numbers = [np.arange(5000), np.arange(5000) * (np.arange(5000) != 2500)], [1, True, 1.0]
    space = Space({"array": arrays, "number": numbers})
    for name, values in (("array", arrays), ("number", numbers)):
        labels = space.grid()[name]
        assert len(set(labels)) == len(values)
        chosen = [space.chosen({name: label})[name] for label in labels]
        assert all(a is b for a, b in zip(chosen, values, strict=True))
        assert [space.named({name: value})[name] for value in values] == labels
    with pytest.raises(ConfigError, match=r"choice: value 1, True, is equal to 1"):
        tune.choice([1, True])


def test_values_have_digests_unless_nothing_of_them_outlasts_a_process() -> None:
    found = [stable_digest(value) for value in searches.values()]
    assert None not in found
    assert len(set(found)) == len(found)
    local = 3
    for value in (lambda x: x, lambda x: x + local, partial(max, key=lambda x: x), [print, lambda: 0]):
        assert stable_digest(value) is None


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"validation": 1.0}, r"validation rows 'val' have other values"),
    ({"data": 1.0}, r"training rows have other values"),
    ({"partitions": 2, "data": 1.0}, r"training rows have other values"),
    ({"partitions": 2, "last": 90}, r"rows is 90 now and was 96"),
    ({"loss": searches.other_loss}, r"the Trainer of trial 0: loss is .*other_loss"),
    ({"rows": 32}, r"the Trainer of trial 0: batch_size is 'the default' now and was \['16'"),
    ({"dropout": 0.5}, r"the Trainer of trial 0: module is"),
    ({"functions": [torch.relu, torch.tanh]}, r"space: 'activation' is"),
    ({"constant": 8}, r"space: 'width' is \['8'"),
]


def test_what_differs_is_refused_by_name(spark: Any, tmp_path: Path) -> None:
    searches.search(spark, tmp_path)
    assert searches.search(spark, tmp_path, resume=True, partitions=2).replayed == 4  # they train alike
    for change, message in CHANGES:
        with pytest.raises(ConfigError, match=f"resume: {message}.*resume with the same, or choose another"):
            searches.search(spark, tmp_path, resume=True, **change)


def test_other_options_of_what_decides_are_refused(spark: Any, tmp_path: Path) -> None:
    pruners = [optuna.pruners.MedianPruner(n_startup_trials=n) for n in (5, 0)]
    samplers = [optuna.samplers.TPESampler(seed=0, n_startup_trials=n) for n in (10, 2)]
    for name, (first, second) in {"scheduler": pruners, "search": samplers}.items():
        for resume in (False, True):  # the same object, and with what the first search has left in it
            searches.search(spark, tmp_path / name, resume=resume, **{name: first})
        with pytest.raises(ConfigError, match=f"resume: {name} is .*{type(first).__name__}.*now and was"):
            searches.search(spark, tmp_path / name, resume=True, **{name: second})


def test_choices_without_a_digest_go_by_their_position(spark: Any, tmp_path: Path) -> None:
    functions = [lambda x: x.relu(), lambda x: x.tanh()]
    searches.search(spark, tmp_path, functions=functions)
    again = [lambda x: x.relu(), lambda x: x.tanh()]
    assert searches.search(spark, tmp_path, functions=again, resume=True).replayed == 4
    setting = json.loads((tmp_path / "search.jsonl").read_text().splitlines()[0])["setting"]
    assert setting["space"]["activation"] == [["<lambda> #0", None], ["<lambda> #1", None]]


def test_two_programs_at_once_are_refused(tmp_path: Path) -> None:
    with Journal(tmp_path, {"trials": 3}, False), pytest.raises(ConfigError, match="another program"):
        Journal(tmp_path, {"trials": 3}, True)
    with Journal(tmp_path, {"trials": 3}, True):
        pass


@pytest.mark.whole
def test_a_search_that_is_killed_goes_on_in_another_process(spark: Any, tmp_path: Path) -> None:
    whole = searches.search(spark, None)
    code = f"from support import searches; searches.killed({str(tmp_path)!r}, 2)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr[-2000:]
    assert process.stdout.strip() == searches.digests()
    found = searches.search(spark, tmp_path, resume=True)
    assert found.replayed == 2
    assert [trial.reports for trial in found.trials] == [trial.reports for trial in whole.trials]
    assert (found.best, found.rungs) == (whole.best, whole.rungs)


def test_a_journal_of_an_earlier_release_is_compared_as_far_as_it_tells(tmp_path: Path) -> None:
    now = {"trials": 2, "space": Space({"x": [1, 2]}).describe(), "training rows": {"rows": 9}}
    before = {"trials": 2, "space": Space({"x": [1, 2]}).describe_before()}
    file = tmp_path / "search.jsonl"
    file.write_text(json.dumps({"sparkdl-tune": 1, "setting": {**before, "rows": 9}}) + "\n")
    with pytest.warns(UserWarning, match="begun by an earlier release, which noted neither"):
        Journal(tmp_path, now, True, {**before, "rows": 9})._close()
    with pytest.raises(ConfigError, match="resume: rows is 8 now and was 9"):
        Journal(tmp_path, now, True, {**before, "rows": 8})
    objects = Space({"x": [[1], [2]]}).describe_before()
    with pytest.raises(ConfigError, match=r"space: 'x' was begun by an earlier release.*another folder"):
        Journal(tmp_path, now, True, {**before, "space": objects})
