"""What a user sees of a run that succeeds: nothing that looks like an error, and no file is left."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import ZipFile
from zipimport import zipimporter

import pytest

from sparkdl import daemon, session

ROOT = Path(__file__).parents[1]
ALARMING = re.compile(r"\b(WARN|ERROR|FATAL|Traceback|Exception|\w+Error|\w*Warning)\b")
NOISE = (" INFO ", "log4j profile", "Setting default log level")
OF_A_BUSY_MACHINE = "WARN Worker: Duplicate registration"  # its worker asked twice, for the answer was late
PROGRAM = """
import json
import os
import random
import sys
import time
from functools import partial

import numpy as np
import torch
from sparkdl import Dataset, TorchClassifier, TorchClassificationModel, Trainer, session
from sparkdl.train import MaxEpoch
from torchmetrics.classification import MulticlassAccuracy

master, folder = sys.argv[1:]
conf = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"}
# Tasks that carry more of what the driver holds are refused; by default above 128 MB.
conf |= {"spark.driver.host": "127.0.0.1", "spark.rpc.message.maxSize": "1"}
conf |= {"spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}
spark = session.builder(master, conf=conf).getOrCreate()
assert session.builder(master).getOrCreate() is spark


def look(rows):
    import gc

    time.sleep(0.5)  # so that the other task gets a process of its own
    known = "torch._dynamo" in sys.modules and gc.get_freeze_count() > 100_000
    drawn = [random.random(), float(np.random.rand())]
    yield [os.getppid(), os.getpid(), known, *drawn]


def looks(batches):
    import pandas as pd

    for _ in batches:
        yield pd.DataFrame({"row": [json.dumps(next(look([])))]})


# Before workers import anything themselves.
rows = spark.sparkContext.parallelize(range(2), 2).mapPartitions(look).collect()
table = spark.range(2, numPartitions=2).mapInPandas(looks, "row string")
rows += [json.loads(row.row) for row in table.collect()]
print("looked=" + json.dumps(rows))

draws = np.random.default_rng(0)
x, y = draws.normal(size=(512, 1000)).astype("float32"), draws.integers(0, 2, 512)


def same(batches):
    yield from batches


class Cell(torch.nn.Module):  # a class of __main__, as in a notebook
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(1000, 2)

    def forward(self, x):
        return self.inner(x)


half = 0.5
own = Dataset.from_numpy(x[:20], y[:20], spark=spark, transform=lambda x: x * half)  # is not released
Trainer(
    Cell(),
    loss=lambda output, label: torch.nn.functional.cross_entropy(output, label),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    batch_size=10,
    end_when=MaxEpoch(1),
).fit(own)
print("store=" + own.store().partitions[0].folder)

sgd = partial(torch.optim.SGD, lr=0.1)
options = dict(loss=torch.nn.CrossEntropyLoss(), optimizer=sgd, batch_size=256, end_when=MaxEpoch(1))
with Dataset.from_numpy(x, y, spark=spark) as data:  # several MB, which the driver holds
    trainer = Trainer(torch.nn.Linear(1000, 2), metrics=MulticlassAccuracy(2), **options)
    trainer.fit(data, data)
    trainer.evaluate(data)
    print("predicted", trainer.predict(data).shape)

rows = [(row[:4].tolist(), int(label)) for row, label in zip(x, y)]
table = spark.createDataFrame(rows, "features array<float>, label int")  # made by Python functions, and
table = table.mapInArrow(same, table.schema)  # changed by another
with Dataset.from_dataframe(table, features="features", label="label") as data:  # looks at the first rows
    Trainer(torch.nn.Linear(4, 2), **options).fit(data)
elements = table.rdd.map(lambda row: (np.array(row.features, "float32"), row.label))
with Dataset.from_rdd(elements) as data:
    Trainer(torch.nn.Linear(4, 2), **options).fit(data)

wide = torch.nn.Sequential(torch.nn.Linear(4, 60_000), torch.nn.Linear(60_000, 2))
model = TorchClassifier(module=wide, optimizer=sgd, maxEpochs=1, batchSize=512).fit(table)
model.write().overwrite().save(folder)  # several MB
found = TorchClassificationModel.load(folder).transform(table)
found.show(2)
found.first()
spark.stop()
print("done")
"""


@pytest.fixture(
    scope="module", params=["local[2]", pytest.param("local-cluster[2,1,1024]", marks=pytest.mark.slow)]
)
def done(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    """The program, after it has run."""
    folder = tmp_path_factory.mktemp("quiet")
    script = folder / "program.py"
    script.write_text(PROGRAM)
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [sys.executable, str(script), request.param, str(folder / "model")],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment,
    )


@pytest.mark.cluster
def test_a_run_that_succeeds_prints_nothing_that_looks_like_an_error(
    done: subprocess.CompletedProcess[str],
) -> None:
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert "done" in done.stdout
    lines = [line for line in printed.splitlines() if OF_A_BUSY_MACHINE not in line]
    assert not [line for line in lines if ALARMING.search(line)], printed
    assert not [line for line in lines if any(noise in line for noise in NOISE)], printed


@pytest.mark.cluster
@pytest.mark.parametrize("done", ["local[2]"], indirect=True, scope="module")
def test_classes_of_main_and_lambdas_train_and_nothing_is_left_on_disk(
    done: subprocess.CompletedProcess[str],
) -> None:
    folder = Path(done.stdout.split("store=")[1].splitlines()[0])
    assert not folder.exists()
    assert not folder.parent.parent.exists()


def test_a_worker_ends_quietly_when_nobody_reads_any_more() -> None:
    def serve(sock: Any, authenticated: bool) -> int:
        raise sock

    for closed in (BrokenPipeError(), ConnectionResetError()):
        assert daemon.quiet(serve)(closed, True) == 1
    with pytest.raises(ZeroDivisionError):
        daemon.quiet(serve)(ZeroDivisionError(), True)
    assert daemon.quiet(lambda sock, authenticated: sock)(7, False) == 7


@pytest.mark.cluster
@pytest.mark.parametrize("done", ["local[2]"], indirect=True, scope="module")
def test_workers_of_a_local_session_come_from_one_process_that_has_torch(
    done: subprocess.CompletedProcess[str],
) -> None:
    assert "looked=" in done.stdout, done.stderr
    rows = json.loads(done.stdout.split("looked=")[1].splitlines()[0])
    assert len({row[0] for row in rows}) == 1, rows  # also those of SQL
    assert all(row[2] for row in rows)
    processes = {row[1]: tuple(row[3:]) for row in rows}
    assert len(processes) > 1
    # Forks of one process would all draw the same numbers.
    for drawn in zip(*processes.values(), strict=True):
        assert len(set(drawn)) == len(drawn)


def test_the_daemon_begins_no_thread_and_no_device_before_it_forks() -> None:
    # Arrow's allocator has one, which it begins anew in each fork.
    program = """
import os
import torch
def used(*_):
    raise AssertionError("a device is asked for before the fork")
for name in ("is_available", "device_count", "_lazy_init"):
    setattr(torch.cuda, name, used)
from sparkdl import daemon
daemon.warm_up()
tasks = os.listdir("/proc/self/task")
print({open(f"/proc/self/task/{task}/comm").read().strip() for task in tasks[1:]} - {"jemalloc_bg_thd"})
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=environment
    )
    assert (done.returncode, done.stdout.strip()) == (0, "set()"), done.stderr


def test_the_daemon_does_without_what_is_not_there(monkeypatch: Any) -> None:
    froze: list[bool] = []
    monkeypatch.setattr(daemon, "MODULES", ("no_such_module", "json"))
    monkeypatch.setattr(gc, "freeze", lambda: froze.append(True))
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    daemon.warm_up()
    assert (froze, gc.isenabled()) == ([True], True)


def test_the_daemon_lets_workers_read_no_archive_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "modules.zip"
    with ZipFile(archive, "w") as file:
        file.writestr("of_an_archive/__init__.py", "")
        file.writestr("of_an_archive/first.py", "")
        file.writestr("of_an_archive/second.py", "number = 2")
    monkeypatch.syspath_prepend(str(archive))
    import_module("of_an_archive.first")
    daemon.forget_archives()
    assert not [path for path, finder in sys.path_importer_cache.items() if isinstance(finder, zipimporter)]
    assert import_module("of_an_archive.second").number == 2
    for name in [name for name in sys.modules if name.startswith("of_an_archive")]:
        del sys.modules[name]


def test_sessions_of_tests_leave_no_path_behind(spark: Any) -> None:
    assert str(Path(__file__).parent) not in os.environ.get("PYTHONPATH", "").split(os.pathsep)


def test_workers_of_local_sessions_are_started_by_the_daemon_if_they_find_it(monkeypatch: Any) -> None:
    def chosen(master: str | None) -> str | None:
        options: dict[str, str] = session.builder(master)._options  # type: ignore[attr-defined]
        return options.get("spark.python.daemon.module")

    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert chosen("local[2]") == chosen("local") == daemon.NAME
    assert chosen("local-cluster[2,1,1024]") is None  # whose executors write to files
    assert chosen(None) is None
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    assert chosen("local[2]") is None
