"""What the benchmarks compare: equal rows, equal steps, and local SGD on both sides."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import convergence
import peers
import pytest

from sparkdl.train import History, LocalSteps

FOLDER = Path(peers.__file__).parent


@pytest.mark.parametrize(
    ("variant", "batch", "local"),
    [
        ("fp32", 128, None),
        ("64 per epoch", 63, None),  # as many steps as rounds of 64 have, of as many rows in all
        ("local_steps=64", 128, 64),
        ("local_steps=epoch", 128, 32),
        ("local_steps=8", 128, 8),
    ],
)
def test_what_variants_are(variant: str, batch: int, local: int | None) -> None:
    options = convergence.options_of(convergence.VARIANTS[variant], rows=4000, batch=128)
    assert (options["batch_size"], options.get("local_steps")) == (batch, local)
    assert "per_epoch" not in options


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, 3), ({"local_steps": 4}, 12), ({"local_steps": LocalSteps({0: 1, 1: 8})}, 17)],
)
def test_rows_and_steps_are_counted(options: dict[str, object], steps: int) -> None:
    rows = [{"epoch": 1, "samples": 10}, {"epoch": 2, "samples": 10}, {"epoch": 2, "samples": 4}]
    assert convergence.effort(rows, options) == {"rows": 24, "steps": steps}
    assert convergence.effort(History(), options) == {"rows": 0, "steps": 0}


def test_local_steps_are_compared_with_those_of_ddp() -> None:
    times = {"ddp": 10.0, "ddp local 8": 3.0, "local 8": 2.0, "direct local 8": 1.0, "groups": 20.0}
    found = {row["mode"]: row for row in peers.table("mlp", 128, times)}
    assert found["local 8"]["ratio_to_ddp"] == 5.0
    assert found["local 8"]["ratio_to_ddp_local"] == 1.5
    assert found["direct local 8"]["ratio_to_ddp_local"] == 3.0
    assert found["groups"]["ratio_to_ddp_local"] is None
    assert {row["rows_per_step"] for row in found.values()} == {128}


@pytest.mark.whole
def test_two_processes_train_by_ddp_and_by_local_sgd() -> None:
    with socket.socket() as one, socket.socket() as other:
        ports = []
        for free in (one, other):  # at the port of the first group's store, the second would wait for good
            free.bind(("127.0.0.1", 0))
            ports.append(str(free.getsockname()[1]))
    code = (
        "import os, ddp_torch\n"
        f"for port, steps in zip({ports}, (1, 4)):\n"
        "    os.environ['MASTER_PORT'] = port\n"
        f"    print(ddp_torch._train({str(FOLDER)!r}, 'tiny', 8, 0.2, steps))\n"
    )
    address = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}
    paths = os.pathsep.join([str(FOLDER), str(FOLDER.parent)])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | address | {"RANK": str(rank), "PYTHONPATH": paths},
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            plain, local = map(float, process.communicate(timeout=200)[0].split())
            assert plain > 0
            assert local > 0
    finally:
        for process in processes:
            process.kill()
