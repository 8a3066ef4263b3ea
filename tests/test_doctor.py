"""The doctor finds what is there and names what is missing."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any, cast

import pyspark
import pytest
from pyspark import cloudpickle

from sparkdl import __main__, __version__, session
from sparkdl.cli.doctor import driver, probe
from sparkdl.cli.doctor import session as checks
from sparkdl.cli.doctor.probe import NEEDED_IN_TASKS
from sparkdl.cli.doctor.report import DoctorReport

LOCAL = ("--master", "local[2]", "--conf", "spark.ui.enabled=false")


def run(*arguments: str, **environment: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "sparkdl", "doctor", "--json", *arguments]
    env = os.environ | {"PYSPARK_PYTHON": sys.executable} | environment
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.cluster
def test_a_session_without_the_confs_can_train_and_hears_what_they_cost() -> None:
    code, report = run(*LOCAL, "spark.python.worker.reuse=false", "--plain")
    assert code == 0
    assert report["can_train"]
    assert report["versions"]["sparkdl"] == __version__
    assert report["spark"]["executors"] == 1
    assert report["spark"]["threads_per_task"] == 2
    (task,) = report["tasks"]
    assert task["packages"]["torch"] == report["versions"]["torch"]
    assert task["packages"]["sparkdl"] == __version__
    assert task["local_dirs"]
    assert not task["unwritable"]
    advice = "\n".join(report["advice"])
    wanted = {s.name for s in session.SETTINGS} - {"spark.driver.maxResultSize"}
    lacking = {conf["name"] for conf in report["confs"] if not conf["ok"]}
    assert lacking == wanted & {conf["name"] for conf in report["confs"]}
    for setting in session.SETTINGS:
        if setting.name in lacking:
            assert f"set {setting.name}={setting.value}: without it {setting.cost}" in advice
    assert "set spark.python.worker.reuse=true" in advice


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """An interpreter that has no package."""
    venv.create(tmp_path / "bare", with_pip=False)
    return tmp_path / "bare" / "bin" / "python"


def check_bare(problems: str, bare: Path) -> None:
    """Check that problems say what executors lack, and what to do."""
    assert "cannot import torch" in problems
    assert str(bare) in problems
    assert "PYSPARK_PYTHON" in problems
    assert "spark.archives" in problems


@pytest.mark.slow
@pytest.mark.cluster
def test_executors_without_torch_are_found_out(bare: Path) -> None:
    # From elsewhere, with no path to this package: what the executors of a cluster see.
    code, report = run(*LOCAL, PYSPARK_PYTHON=str(bare), PYTHONPATH="")
    assert code == 1
    assert not report["can_train"]
    assert all(conf["ok"] for conf in report["confs"])
    check_bare("\n".join(report["problems"]), bare)


TASK = """
import json, sys
from pyspark import cloudpickle
print(json.dumps(list(cloudpickle.loads(sys.stdin.buffer.read())([0]))))
"""


class BareExecutors:
    """A session whose tasks run in an interpreter that has PySpark's archives alone, as Spark starts it."""

    version, master = "4.0.0", "local[2]"

    def __init__(self, bare: Path) -> None:
        self._bare = bare
        self.sparkContext = self

    def getConf(self) -> dict[str, str]:  # noqa: N802 (PySpark's name)
        return {}

    def parallelize(self, rows: Any, slots: int) -> BareExecutors:
        return self

    def mapPartitions(self, task: Any) -> BareExecutors:  # noqa: N802 (PySpark's name)
        self._task = cloudpickle.dumps(task)
        return self

    def collect(self) -> Any:
        archives = Path(pyspark.__file__).parent.glob("python/lib/*.zip")
        environment = {"PYTHONPATH": os.pathsep.join(map(str, archives)), "SPARK_LOCAL_DIRS": "/tmp"}
        command = [str(self._bare), "-c", TASK]
        how: dict[str, Any] = {"input": self._task, "env": environment, "cwd": self._bare.parent}
        done = subprocess.run(command, capture_output=True, check=False, **how)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)


def test_tasks_find_out_that_they_have_no_torch(bare: Path) -> None:
    # The same with a session: test_executors_without_torch_are_found_out.
    report = DoctorReport(versions=dict.fromkeys(NEEDED_IN_TASKS, "1.0"))
    checks._check_executors(report, cast("Any", BareExecutors(bare)))
    assert not report.can_train
    problems = "\n".join(report.problems)
    check_bare(problems, bare)
    assert "cannot import sparkdl (ModuleNotFoundError: No module named 'sparkdl')" in problems


def test_no_java_is_told_before_spark_starts(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr(checks, "_start", lambda *_: pytest.fail("Spark was started"))
    assert __main__.main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "no Java found: install a Java 17 runtime and set JAVA_HOME" in printed
    assert "This setup cannot train." in printed


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "17.0.15"),
        ('java version "1.8.0_292"', "8.0_292"),
        ("?", None),
    ],
)
def test_java_versions_are_read(monkeypatch: pytest.MonkeyPatch, version: str, expected: str | None) -> None:
    monkeypatch.setattr(
        driver.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, "", f"{version}\n")
    )
    assert driver._java_version() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('java.io.IOException: Cannot run program "python9": error=2', "executors have no 'python9' to run"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version (3, 9)", "another Python"),
        ("org.apache.spark.SparkException: lost", "a small Python job failed on the executors"),
    ],
)
def test_failures_of_the_probing_job_are_explained(text: str, expected: str) -> None:
    assert expected in checks._task_failure(RuntimeError(text))


def judged(**found: Any) -> DoctorReport:
    report = DoctorReport(versions=dict.fromkeys(NEEDED_IN_TASKS, "1.0"), spark={"threads_per_task": 4})
    task = {
        "host": "h",
        "executable": "/usr/bin/python3",
        "packages": dict.fromkeys(NEEDED_IN_TASKS, "1.0"),
        "failures": {},
        "has_bytecode": True,
        "cores": 4,
        "load": 0.5,
        "wait_policy": "",
        "local_dirs": ["/tmp"],
        "unwritable": [],
        "free_bytes": 1 << 40,
    }
    checks._judge(report, task | found)
    return report


@pytest.mark.parametrize("found", [{}, {"load": 4.0, "wait_policy": "passive"}])
def test_a_sound_executor_gets_no_remark(found: dict[str, Any]) -> None:
    report = judged(**found)
    assert report.can_train
    assert not report.advice


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({"unwritable": ["/data: Permission denied"]}, "SPARK_LOCAL_DIRS"),
        ({"packages": dict.fromkeys(NEEDED_IN_TASKS, "1.0") | {"sparkdl": "0.0.1"}}, "one version"),
        ({"packages": dict.fromkeys(NEEDED_IN_TASKS, "1.0") | {"pyarrow": None}}, "import pyarrow"),
        ({"failures": {"torch": "OSError: libtorch.so"}}, "OSError: libtorch.so"),
    ],
)
def test_what_an_executor_lacks_is_a_problem(found: dict[str, Any], problem: str) -> None:
    report = judged(**found)
    assert not report.can_train
    assert problem in report.problems[0]


@pytest.mark.parametrize(
    ("found", "advice"),
    [
        ({"packages": dict.fromkeys(NEEDED_IN_TASKS, "1.0") | {"torch": "2.0"}}, "has torch 2.0"),
        ({"free_bytes": 1 << 20}, "larger disk"),
        ({"cores": 2}, "spark.executor.cores=2"),
        ({"load": 4.0}, "spark.executorEnv.OMP_WAIT_POLICY=passive"),
        ({"has_bytecode": False}, "executor on h has no compiled Python of torch"),
    ],
)
def test_what_costs_an_executor_time_is_advice(found: dict[str, Any], advice: str) -> None:
    report = judged(**found)
    assert report.can_train
    assert advice in report.advice[0]


@pytest.mark.parametrize("kept", [True, False])
def test_packages_that_each_process_compiles_again_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    (tmp_path / "compiled_or_not.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", not kept)
    importlib.import_module("compiled_or_not")
    try:
        assert probe.has_bytecode("compiled_or_not") is kept
    finally:
        del sys.modules["compiled_or_not"]


@pytest.mark.parametrize("pair", ["novalue", "=1"])
def test_malformed_confs_are_refused(pair: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as exit_info:
        __main__.main(["doctor", "--conf", pair])
    assert exit_info.value.code == 2
    assert "expected KEY=VALUE" in capsys.readouterr().err


def test_help_shows_examples(capsys: Any) -> None:
    with pytest.raises(SystemExit) as exit_info:
        __main__.main(["doctor", "--help"])
    assert exit_info.value.code == 0
    assert "python -m sparkdl doctor --master 'local[4]'" in capsys.readouterr().out
