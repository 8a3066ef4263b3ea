"""The daemon of the tests' Python workers, which has imported everything before it forks them.

A worker that imports torch by itself takes seconds of processor time, and Spark starts one for each task that
fails or is not read to its end.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from importlib.util import find_spec

# PySpark as it is installed comes before its archive, in which no module is compiled.
sys.path.sort(key=lambda path: path.endswith("pyspark.zip"))

from pyspark import daemon

from sparkdl.daemon import forget_archives, quiet

NAME = "support.forking"
# Torch imports its compiler with the first optimizer: more than a second in each worker.
MODULES = (
    "pandas",
    "pyarrow.pandas_compat",
    "pyspark.ml",
    "pyspark.worker",
    "sparkdl.access.classic",
    "sparkdl.ml",
    "sparkdl.ml.stages.scorer",
    "sparkdl.ml.stages.tabular_fit",
    "sparkdl.ml.stages.udf",
    "sparkdl.nn.losses",
    "sparkdl.nn.models.mlp",
    "sparkdl.nn.models.tabular",
    "sparkdl.train",
    "torch._dynamo",
    "torch.utils.serialization",
    "torchmetrics",
)


if __name__ == "__main__":
    for module in MODULES:  # and nothing runs, for threads do not survive a fork
        if find_spec(module) is not None:  # torch 2.4 has no torch.utils.serialization
            import_module(module)
    forget_archives()
    # PySpark looks at all objects after each task.
    gc.collect()
    gc.freeze()
    vars(daemon)["worker"] = quiet(daemon.worker)
    daemon.manager()
