"""A real standalone master with two workers, and spark-submit."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from standalone import ENVIRONMENT, HOME, cluster

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "mnist_lenet.py"

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def master() -> Iterator[str]:
    """Start a master and two workers of one core; yield the master's URL."""
    with cluster(workers=2) as running:
        yield running.url


PROGRAM = """
import json
from functools import partial

import torch

from sparkdl import Dataset, Trainer, session
from sparkdl.train import MaxEpoch

spark = session.builder(app_name="line").getOrCreate()
rows = spark.range(-100, 100).selectExpr("array(id / 100) as x", "array(3 * id / 100 + 1) as y")
executors = session.executors(spark)
with Dataset.from_dataframe(rows, features="x", label="y") as data:
    trainer = Trainer(
        torch.nn.Linear(1, 1),
        loss=torch.nn.MSELoss(),
        optimizer=partial(torch.optim.SGD, lr=0.3),
        batch_size=50,
        end_when=MaxEpoch(10),
    )
    result = trainer.fit(data)
    places = len({token.executor for token in data.store().partitions})
spark.stop()
line = [result.module.weight.item(), result.module.bias.item()]
found = {"line": line, "executors": executors.count, "places": places}
print(json.dumps(found | {"direct": result.history.column("direct")}))
"""


def submit(master: str, script: Path, *arguments: str) -> str:
    """Run a script with spark-submit and return the last line that it printed."""
    command = [HOME / "bin" / "spark-submit", "--master", master]
    command += ["--properties-file", ROOT / "conf" / "standalone.conf"]
    confs = {
        "spark.executor.memory": "1g",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        # Each query runs once: the Java code that Spark writes for one costs more to compile than it saves.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    for name, value in confs.items():
        command += ["--conf", f"{name}={value}"]
    command += [script, *arguments]
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, timeout=300, env=os.environ | ENVIRONMENT
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def test_submit_to_a_standalone_cluster(master: str, tmp_path: Path) -> None:
    script = tmp_path / "line.py"
    script.write_text(PROGRAM)
    found = json.loads(submit(master, script))
    assert found["line"] == pytest.approx([3, 1], abs=0.05)
    assert (found["executors"], found["places"]) == (2, 2)
    assert found["direct"][-1] == 1  # a group goes by shuffles where a process is late


@pytest.mark.slow
@pytest.mark.parametrize("where", ["standalone", "local-cluster"])
def test_submit_the_example(request: pytest.FixtureRequest, where: str) -> None:
    # In the session of the tests: tests/test_examples.py.
    url = request.getfixturevalue("master") if where == "standalone" else "local-cluster[2,1,2048]"
    found = re.fullmatch(r"test_accuracy=(0\.\d{4})", submit(url, EXAMPLE, "--epochs", "1"))
    assert found
    assert float(found[1]) > 0.5
