import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "iteration.py"
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


def test_iteration_prints_one_json_line():
    options = ["--model", "tiny", "--batch", "20", "--iterations", "5", "--warmup", "3", "--partitions", "2"]
    command = [sys.executable, str(SCRIPT), "--master", "local[2]", *options]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert set(found) >= KEYS
    assert (found["model"], found["batch"], found["partitions"]) == ("tiny", 20, 2)
    assert (found["warmup"], found["iterations"]) == (3, 5)
    assert found["ms_per_iteration"] > 0
    assert found["torch_ms_per_iteration"] > 0
    # SGD without momentum: a map side and a result stage, two tasks each.
    assert (found["jobs"], found["stages"], found["tasks"]) == (2, 2, 4)
    assert found["bytes"]["slices"] == 11 * 4
