"""Python processes that Spark has made beyond an executor's slots, as for two Python stages of one task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pyspark.sql.functions import udf
from support.data import as_dataset, partitioned
from support.fits import fit
from support.models import mlp
from support.reference import assert_bit_equal

from sparkdl import Dataset
from sparkdl._spark.processes import EndSurplus, TaskMeeting, siblings
from sparkdl.access import access_to
from sparkdl.compute import worker
from sparkdl.train import Hook, Run

TWO = partitioned([130, 110])


def processes(spark: Any, slots: int) -> int:
    """Return how many processes take turns in an executor's slots."""
    keeps_all = EndSurplus(100, 0.1 if slots > 1 else 0.0)
    return max(map(int, access_to(spark).run_everywhere(keeps_all, times=slots)))


def double(batches: Any) -> Any:
    for batch in batches:
        yield batch.assign(x=batch.x * 2)


def run_two_stages(spark: Any, slots: int) -> None:
    """Let each slot have two processes for a moment, as a notebook's cell does."""
    rows = spark.range(0, 64, 1, slots).selectExpr("cast(id as double) x")
    assert rows.mapInPandas(double, "x double").mapInPandas(double, "x double").count() == 64


DIRECT: dict[str, Any] = {"transport": "direct", "iterations_per_job": 4}


class RunsTwoStages(Hook):
    """Runs a job of two Python stages while a fit goes on."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    def on_iteration_end(self, run: Run) -> None:
        if run.state.iteration == 8:
            run_two_stages(self.spark, 2)


def test_a_process_knows_those_that_the_same_daemon_has_forked() -> None:
    program = (
        "import json, os, sys, time\n"
        "from sparkdl._spark.processes import siblings\n"
        "other = os.spawnvp(os.P_NOWAIT, 'sleep', ['sleep', '20'])\n"
        "pids = []\n"
        "ready, go = os.pipe()\n"
        "over, end = os.pipe()\n"
        "for n in range(3):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        os.read(ready, 1)\n"
        "        os.write(1, json.dumps([os.getpid(), siblings()]).encode() + b'\\n')\n"
        "        os.read(over, 1)\n"
        "        os._exit(0)\n"
        "    pids.append(pid)\n"
        "dead = os.fork()\n"
        "if not dead:\n"
        "    os._exit(0)\n"
        "time.sleep(0.2)\n"  # it has ended, and nobody has asked how
        "os.write(go, b'123')\n"
        "time.sleep(0.5)\n"
        "os.write(end, b'123')\n"
        "for pid in [*pids, dead]:\n"
        "    os.waitpid(pid, 0)\n"
        "os.kill(other, 9)\n"
        "print(json.dumps(pids))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    *found, pids = map(json.loads, run.stdout.splitlines())
    assert sorted(own for own, _ in found) == sorted(pids)
    assert all(others == sorted(pids) for _, others in found)


@pytest.mark.parametrize("come", [1, 2, 3])
def test_tasks_wait_for_each_other_and_not_for_ever(
    come: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkdl._spark.processes.local_folders", lambda: [tmp_path])
    monkeypatch.setattr("sparkdl._spark.processes.LINGER_SECONDS", 30.0 if come == 3 else 0.05)
    meeting, together = TaskMeeting(3), Barrier(come)

    def task(_: int) -> None:
        together.wait()
        meeting.wait()

    with ThreadPoolExecutor(come) as pool:
        started = time.monotonic()
        list(pool.map(task, range(come)))
        seconds = time.monotonic() - started
    assert seconds < 20 if come == 3 else seconds >= 0.05
    assert not list(tmp_path.iterdir())
    TaskMeeting(1).wait()
    monkeypatch.setattr("sparkdl._spark.processes.local_folders", lambda: [tmp_path / "gone"])
    if come < 3:
        meeting.wait()  # a folder that cannot be written to fails nothing


def test_a_process_without_a_daemon_is_alone() -> None:
    program = "import os\nfrom sparkdl._spark.processes import siblings\nprint(siblings() == [os.getpid()])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.stdout == "True\n", run.stderr
    assert len(siblings()) >= 1


def test_tasks_exchange_directly_after_a_job_of_two_python_stages(spark: Any) -> None:
    with as_dataset(spark, TWO) as data:
        data.store()
        run_two_stages(spark, 2)
        assert processes(spark, 2) > 2
        found = fit(data, mlp(), 24, **DIRECT)
    assert found.history.column("direct") == [1] * 24
    assert processes(spark, 2) == 2


class Models:
    """The task that says how many fits' models this process has."""

    def __call__(self, _: int, frames: Any) -> Any:
        deque(frames, maxlen=0)
        time.sleep(0.1)
        yield f"{os.getpid()} {len(worker._workers)}".encode()


def test_no_process_keeps_a_model_that_tasks_have_exchanged(spark: Any) -> None:
    with as_dataset(spark, TWO) as data:
        for _ in range(2):
            fit(data, mlp(), 24, **DIRECT)
    found = {bytes(one) for one in access_to(spark).run_everywhere(Models(), times=2)}
    assert {one.split()[1] for one in found} == {b"0"}


def test_a_job_of_two_python_stages_while_a_fit_goes_on(cluster: Any) -> None:
    with as_dataset(cluster, TWO) as data:
        wanted = fit(data, mlp(), iterations_per_job=4)
        found = fit(data, mlp(), iterations_per_job=4, hooks=[RunsTwoStages(cluster)])
    assert_bit_equal(found.module, wanted.module)
    assert processes(cluster, 1) == 1  # from the first task on that did not find what another had left


def test_a_store_takes_one_process_for_each_slot(cluster: Any) -> None:
    access_to(cluster).run_everywhere(EndSurplus(1), times=4)
    with Dataset.from_dataframe(cluster.range(100), features="id", num_partitions=2) as data:
        data.store()
        assert processes(cluster, 1) == 1


@pytest.mark.parametrize("transport", ["direct", "shuffle"])
def test_one_process_for_each_slot_though_rows_come_from_a_python_function(
    cluster: Any, transport: Any
) -> None:
    rows = [([float(n % 7)] * 64, n % 3) for n in range(240)]  # which are a Python stage of their own
    df = cluster.createDataFrame(rows, "x array<float>, y long")
    df = df.withColumn("x", udf(lambda x: [2 * value for value in x], "array<float>")("x"))
    with Dataset.from_dataframe(df, features="x", label="y", num_partitions=2) as data:
        data.store()
        assert processes(cluster, 1) > 1
        found = fit(data, mlp(), 24, **DIRECT | {"transport": transport})
    assert processes(cluster, 1) == 1
    assert found.history.column("direct") == [int(transport == "direct")] * 24
