"""A client without Java and without py4j, as pip's pyspark-client is: run by ``test_connect.py``."""

from __future__ import annotations

import importlib.abc
import os
import signal
import sys
import threading
from functools import partial
from typing import Any


class Missing(importlib.abc.MetaPathFinder):
    """Lets what only classic sessions need be missing."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "pyspark.core" or name.split(".")[0] == "py4j":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main(url: str) -> None:
    import numpy as np
    import torch
    from pyspark.sql import SparkSession
    from support.connect import tell

    from sparkdl import Dataset, Trainer
    from sparkdl.train import Hook, MaxEpoch, Run

    class Interrupts(Hook):
        """Presses Ctrl-C while later iterations are under way."""

        def on_epoch_end(self, run: Run) -> None:
            if run.state.epoch == 2:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    spark = SparkSession.builder.remote(url).getOrCreate()
    x = np.linspace(-1, 1, 1000)
    df = spark.createDataFrame([(float(v), float(3 * v + 1)) for v in x], "x double, y double")
    rows = df.selectExpr("array(x) AS x", "array(y) AS y")
    found: dict[str, Any] = {}
    with Dataset.from_dataframe(rows, features="x", label="y") as data:

        def fit(epochs: int, **options: Any) -> Any:
            return Trainer(
                torch.nn.Linear(1, 1),
                loss=torch.nn.MSELoss(),
                optimizer=partial(torch.optim.SGD, lr=0.1),
                batch_size=100,
                end_when=MaxEpoch(epochs),
                progress=False,
                **options,
            ).fit(data)

        line = fit(10).module
        found["line"] = [line.weight.item(), line.bias.item()]
        interrupted = fit(100_000, hooks=[Interrupts()])
        found["stopped by"] = interrupted.stopped_by
        found["epochs"] = interrupted.state.epoch
    found["py4j"] = "py4j" in sys.modules
    tell(found)


if __name__ == "__main__":
    sys.meta_path.insert(0, Missing())
    os.environ.pop("JAVA_HOME", None)
    os.environ["PATH"] = ""
    main(sys.argv[1])
