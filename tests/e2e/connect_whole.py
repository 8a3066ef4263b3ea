"""All of a fit by a client without Java and without py4j, as pip's pyspark-client is."""

from __future__ import annotations

import contextlib
import importlib.abc
import io
import os
import re
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "README.md"
SLEEP = 120.0


class Missing(importlib.abc.MetaPathFinder):
    """Lets what only classic sessions need be missing."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "pyspark.core" or name.split(".")[0] == "py4j":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def readme(spark: Any) -> dict[str, Any]:
    """Return the namespace of the README's first program, run in another session than its own."""
    first = re.search(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert first is not None
    code, changed = re.subn(r"^spark = .*$", "", first[1], flags=re.MULTILINE)
    assert changed == 1
    namespace: dict[str, Any] = {"__name__": "__main__", "spark": spark}
    exec(compile(code, str(README), "exec", dont_inherit=True), namespace)
    return namespace


def press(*seconds: float) -> None:
    """Press Ctrl-C so many seconds from now, each after the one before."""

    def run() -> None:
        for one in seconds:
            time.sleep(one)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=run, daemon=True).start()


def main(url: str) -> None:
    import pyspark
    import torch
    from pyspark.sql import SparkSession
    from support.connect import tell

    from sparkdl import Trainer
    from sparkdl.train import Checkpoint, EveryEpoch, Hook, MaxEpoch, Run

    class Interrupts(Hook):
        """Presses Ctrl-C while later iterations are under way."""

        def on_epoch_end(self, run: Run) -> None:
            if run.state.epoch == 2:
                press(0.3)

    class Falls(Hook):
        """Lets tasks fall asleep, and presses Ctrl-C twice then."""

        def on_epoch_end(self, run: Run) -> None:
            if run.state.epoch == 1:
                asleep.touch()
                press(3, 2)

    class Sleepy(torch.nn.Linear):
        """Sleeps in each forward pass while a file is there."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if os.path.exists(asleep):
                time.sleep(SLEEP)
            return super().forward(x)

    spark = SparkSession.builder.remote(url).getOrCreate()
    try:
        spark.createDataFrame([(1,)], "one int")
    except ValueError:  # PySpark 4.3 cannot read a conf as a 4.1 server tells it
        found_line = spark.range(1000).selectExpr("2 * id / 999D - 1 AS x").selectExpr("x", "3 * x + 1 AS y")
        spark.createDataFrame = lambda rows, schema: found_line  # type: ignore[method-assign,assignment]
    found: dict[str, Any] = {"version": pyspark.__version__, "server": spark.version}
    told = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told):
        made = readme(spark)
    found["line"] = [made["result"].module.weight.item(), made["result"].module.bias.item()]
    found["bar"], found["losses"] = told.getvalue()[-1000:], made["result"].history.column("loss")

    asleep, folder = Path("asleep").absolute(), Path("kept").absolute()

    def fit(epochs: int, module: Any = torch.nn.Linear, **options: Any) -> Any:
        resume = options.pop("resume", False)
        return Trainer(
            module(1, 1),
            loss=torch.nn.MSELoss(),
            optimizer=partial(torch.optim.SGD, lr=0.1),
            batch_size=100,
            end_when=MaxEpoch(epochs),
            progress=False,
            seed=1,
            **options,
        ).fit(made["data"], resume=resume)

    found["stopped by"] = fit(100_000, hooks=[Interrupts()]).stopped_by
    kept = [Checkpoint(folder, EveryEpoch())]
    fit(2, hooks=kept)
    resumed = fit(4, hooks=kept, resume=True)
    found["epochs"] = [row["epoch"] for row in resumed.history]
    begin = time.monotonic()
    try:
        found["second"] = fit(1_000, Sleepy, hooks=[Falls()]).stopped_by
    except KeyboardInterrupt:
        found["second"] = "raised"
    asleep.unlink()
    # Tasks that were still asleep would have all slots.
    found["rows"] = spark.range(0, 4, 1, 4).mapInArrow(lambda batches: batches, "id long").count()
    found["seconds"] = time.monotonic() - begin
    found["py4j"] = "py4j" in sys.modules
    made["data"].release()
    tell(found)


if __name__ == "__main__":
    sys.meta_path.insert(0, Missing())
    os.environ.pop("JAVA_HOME", None)
    os.environ["PATH"] = ""
    main(sys.argv[1])
