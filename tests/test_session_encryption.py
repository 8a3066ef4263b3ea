"""With Spark's I/O encryption, sparkdl's plain files are refused until they are accepted."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from sparkdl import session
from sparkdl.exceptions import ConfigError


class FakeSpark:
    """A session with these confs."""

    def __init__(self, **confs: str) -> None:
        self.conf = self
        self.sparkContext = self
        self._confs = {name.replace("_", "."): value for name, value in confs.items()}

    def getConf(self) -> Any:  # noqa: N802
        return self

    def get(self, name: str, default: str | None = None) -> str | None:
        return self._confs.get(name, default)


@pytest.mark.parametrize(
    "confs",
    [
        {},
        {"spark_io_encryption_enabled": "false"},
        {"spark_io_encryption_enabled": "TRUE", "spark_sparkdl_plainFiles": "True"},
    ],
)
def test_plain_files_are_fine(confs: dict[str, str]) -> None:
    session.check_encryption(FakeSpark(**confs))  # type: ignore[arg-type]


@pytest.mark.parametrize("confs", [{}, {"spark_sparkdl_plainFiles": "false"}])
def test_plain_files_are_refused(confs: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"Set spark\.sparkdl\.plainFiles=true if") as raised:
        session.check_encryption(FakeSpark(spark_io_encryption_enabled="true", **confs))  # type: ignore[arg-type]
    assert raised.value.code == "config-encryption"


SCRIPT = """
import os
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sparkdl import Dataset, Trainer, session
from sparkdl.exceptions import ConfigError
from sparkdl.train import MaxIteration

os.umask(0)
conf = {"spark.io.encryption.enabled": "true", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
spark = session.builder("local[2]", conf=conf).getOrCreate()
x = np.random.default_rng(0).normal(size=(64, 200)).astype("float32")


def files(_):
    folders = [Path(name) for name in os.environ["SPARK_LOCAL_DIRS"].split(",")]
    found = [path for folder in folders for path in folder.glob("sparkdl*/**/*")]
    return [(path.name, oct(path.stat().st_mode & 0o777), path.is_dir()) for path in found]


def left():
    return spark.sparkContext.parallelize([0], 1).flatMap(files).collect()


try:
    Dataset.from_numpy(x, x[:, :1], spark=spark)
    raise SystemExit("not refused")
except ConfigError as error:
    print(error.code)
assert not left()
spark.conf.set("spark.sparkdl.plainFiles", "true")
wide = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Linear(200, 1))  # too large to travel inline
with Dataset.from_numpy(x, x[:, :1], spark=spark, num_partitions=2) as data:
    trainer = Trainer(
        wide,
        loss=torch.nn.MSELoss(),
        optimizer=partial(torch.optim.Adam, lr=0.1),
        end_when=MaxIteration(2),
        exchange="sharded",
        progress=False,
        local_steps=2,
    )
    print(len(trainer.fit(data).history))
    found = left()
    assert found
    for name, mode, is_folder in found:
        assert mode == ("0o700" if is_folder else "0o600"), (name, mode)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.cluster
def test_a_session_with_encryption_trains_when_plain_files_are_accepted() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["config-encryption", "2"]
