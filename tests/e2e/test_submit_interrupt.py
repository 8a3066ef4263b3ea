"""Ctrl-C in a terminal, where a script runs under ``sparkdl submit``: a fit ends as it does under Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SCRIPT = """
from functools import partial

import numpy as np
import torch
from sparkdl import Dataset, Trainer, session
from sparkdl.train import Hook, MaxEpoch

class Presses(Hook):
    def on_epoch_end(self, run):
        if run.state.epoch == 2:
            print("epochs", flush=True)

spark = session.builder("local[1]").getOrCreate()
x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
data = Dataset.from_numpy(x, x.sum(1, keepdims=True), spark=spark)
sgd = partial(torch.optim.SGD, lr=0.1)
trainer = Trainer(
    torch.nn.Linear(3, 1), loss=torch.nn.MSELoss(), optimizer=sgd, end_when=MaxEpoch(10**6),
    hooks=[Presses()], progress=False,
)
print("stopped by", trainer.fit(data).stopped_by)
print("rows", spark.range(7).count())
"""


@pytest.mark.parametrize("presses", [1, 2])
def test_one_ctrl_c_ends_the_fit_and_two_the_script_in_one_line(tmp_path: Path, presses: int) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "-m", "sparkdl", "submit", "--master", "local[1]", "train.py"],
        cwd=tmp_path,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "errors").open("w"),
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "epochs\n"
        for _ in range(presses):  # a terminal sends it to all processes of its foreground
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.02)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    lines = out.splitlines()  # spark-submit writes what the driver says, on both of its streams, to stdout
    assert not any("Traceback" in line for line in [*lines, *(tmp_path / "errors").read_text().splitlines()])
    if presses == 1:
        assert process.returncode == 0
        assert lines[-2:] == ["stopped by interrupt", "rows 7"]
    else:
        assert process.returncode == 128 + signal.SIGINT
        assert "KeyboardInterrupt: sparkdl: stopped at once, by Ctrl-C" in lines
        assert not any(line.startswith("stopped by") for line in lines)
