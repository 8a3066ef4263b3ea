import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
INFERENCE_KEYS = {
    "batch",
    "best_ratio",
    "cpu_ratio",
    "jvm_us",
    "python_us",
    "ratio",
    "records_per_second",
    "torch_records_per_second",
    "torch_us",
}
KEYS = {
    "model",
    "batch",
    "partitions",
    "ms_per_iteration",
    "records_per_second",
    "torch_ms_per_iteration",
    "jobs",
    "stages",
    "tasks",
    "bytes",
    "phases_ms",
}


def run(script, *options):
    """Run a benchmark and return what its only line of output says."""
    command = [sys.executable, str(FOLDER / script), "--master", "local[2]", *options]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = done.stdout.splitlines()
    return json.loads(line)


@pytest.mark.slow
def test_iteration_prints_one_json_line():
    options = ["--model", "tiny", "--batch", "20", "--iterations", "5", "--warmup", "3", "--partitions", "2"]
    options += ["--exchange", "driver"]
    found = run("iteration.py", *options)
    assert set(found) >= KEYS
    assert (found["model"], found["batch"], found["partitions"]) == ("tiny", 20, 2)
    assert (found["warmup"], found["iterations"]) == (3, 5)
    assert found["ms_per_iteration"] > 0
    assert found["torch_ms_per_iteration"] > 0
    # SGD without momentum: a map side and a result stage, two tasks each.
    assert [round(found[name], 1) for name in ("jobs", "stages", "tasks")] == [2, 2, 4]
    assert found["bytes"]["shards"] == 11 * 4


@pytest.mark.slow
def test_inference_prints_one_json_line():
    found = run("inference.py", "--models", "mlp", "--column", "binary", "--rows", "60", "--turns", "1")
    assert set(found) >= INFERENCE_KEYS
    assert (found["model"], found["column"], found["records"], found["cores"]) == ("mlp", "binary", 60, 2)
    assert found["arrow"] == "4m"
    assert found["records_per_second"] > 0
    assert found["torch_records_per_second"] > 0


@pytest.mark.slow
def test_bare_prints_one_json_line():
    found = run("bare.py", "--bytes", "100", "--rounds", "1", "--seconds", "1")
    assert (found["round"], found["bytes"]) == (0, 100)
    assert found["ms_per_stage"] > 0
