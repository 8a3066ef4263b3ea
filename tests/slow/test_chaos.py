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


TABLES = ["--transport", "direct", "--tables", "--late", "0.5"]
"""With an embedding variable, and gradients that come late."""
BOUNDED = ["--tables", "--row-memory", "20000"]


@pytest.mark.parametrize(
    ("scenario", "options"),
    [*((name, []) for name in SCENARIOS), ("kill", TABLES), ("both", TABLES), ("kill", BOUNDED)],
)
def test_bits_survive(scenario: str, options: list[str]) -> None:
    command = [sys.executable, str(SCRIPT), "--scenario", scenario, "--kills", "3"]
    command += [*options, "--iterations", "600" if options else "150"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    line = json.loads(done.stdout)
    assert line["bit_identical"] == line["runs"] >= 1
    assert line["kills"] >= 3
