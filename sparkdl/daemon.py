"""PySpark's daemon, with torch: workers are forked off a process that has imported what sparkdl's tasks use.

PySpark's own daemon has imported nothing. Each worker takes seconds of processor time then until it has
torch, and some hundred megabytes of its own; workers of this one begin at once, and share that memory.
:func:`sparkdl.session.builder` names this module to Spark (``spark.python.daemon.module``) in local mode, and
``sparkdl submit`` for executors that get its own environment. Modules of users are never imported here:
workers would keep them as they were when the session began.

Workers end without a traceback if their reader has stopped. ``limit``, ``show`` or ``head`` over a Python
function stop reading before it has sent everything. Over a Unix socket the worker notices, and since Spark
4.1 PySpark's daemon prints a ``BrokenPipeError`` for each such worker, as if something had failed; and also
for a worker that ends because it was idle for a minute, or because the session stops.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any
from zipimport import zipimporter

NAME = "sparkdl.daemon"

MODULES = (
    "pyspark.worker",
    "pandas",
    "pyarrow",
    "pyspark.ml.linalg",  # of the columns of classifiers: with all of pyspark.ml, 0.6 s of each worker
    "torch._dynamo",  # torch imports its compiler with the first optimizer
    "sparkdl.train",
    "sparkdl.ml.stages.scorer",
)
"""What workers begin with: what a step, and a model's transform, would import."""

Serve = Callable[[Any, bool], int]
"""What serves tasks on a socket, authenticated or not, until the worker's exit status is known."""


def warm_up() -> None:
    """Import what workers begin with, as far as it is there; tasks say what they lack.

    Nothing of it may run: threads do not survive a fork.
    """
    gc.disable()
    for module in MODULES:
        with suppress(Exception):  # also of libraries that do not load
            import_module(module)
    forget_archives()
    gc.enable()
    # PySpark looks at all objects after each task: that takes time, and would copy their memory.
    gc.freeze()
    with suppress(ImportError):
        import numpy as np

        # Else all workers would draw the same numbers. Python seeds its own anew; torch's always start alike.
        os.register_at_fork(after_in_child=np.random.seed)


def forget_archives() -> None:
    """Let the import system forget what finds modules in archives; it makes that anew where it has to.

    A worker invalidates all finders before its first task. Python 3.11 then reads the directory of
    ``pyspark.zip`` again, fifteen hundred files, for each package in it: 0.15 s of each worker's time.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def quiet(serve: Serve) -> Serve:
    """Return ``serve`` with status 1 in place of an error where Spark has closed the connection."""

    def until_closed(sock: Any, authenticated: bool) -> int:
        try:
            return serve(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return until_closed


if __name__ == "__main__":
    from pyspark import daemon

    warm_up()
    vars(daemon)["worker"] = quiet(daemon.worker)
    daemon.manager()
