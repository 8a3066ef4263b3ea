"""The daemon of the tests' Python workers, which has imported everything before it forks them.

A worker that imports torch by itself takes seconds of processor time, and Spark starts one for each task that
fails or is not read to its end.
"""

from __future__ import annotations

import gc
from importlib import import_module

from pyspark import daemon

from sparkdl.daemon import quiet

NAME = "support.forking"
MODULES = ("pandas", "pyarrow", "pyspark.worker", "sparkdl.ml", "sparkdl.train", "torchmetrics")


if __name__ == "__main__":
    for module in MODULES:  # and nothing runs, for threads do not survive a fork
        import_module(module)
    # PySpark looks at all objects after each task.
    gc.collect()
    gc.freeze()
    vars(daemon)["worker"] = quiet(daemon.worker)
    daemon.manager()
