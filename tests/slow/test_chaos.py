"""Whatever dies, the weights are those of the undisturbed run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from chaos import SCENARIOS

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "chaos.py"

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("scenario", "options"),
    [*((name, []) for name in SCENARIOS), ("kill", ["--row-memory", "20000"])],
)
def test_bits_survive(scenario: str, options: list[str]) -> None:
    command = [sys.executable, str(SCRIPT), "--scenario", scenario, "--kills", "3", "--iterations", "150"]
    command += options
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    line = json.loads(done.stdout)
    assert line["bit_identical"] == line["runs"] >= 1
    assert line["kills"] >= 3
