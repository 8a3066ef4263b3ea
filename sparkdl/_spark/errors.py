"""Failed jobs: what py4j reports of them, as errors without the stacks of py4j and the JVM."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from sparkdl import exceptions
from sparkdl.exceptions import SparkdlError, TaskError

_CHAIN = "\n\nThe above exception was the direct cause of the following exception:\n\n"
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?\Z", re.MULTILINE | re.DOTALL)
_ENVIRONMENT = "task-environment"
_SHIP = (
    "Their Python environment needs what the driver's has: set PYSPARK_PYTHON to an environment that all "
    "machines share, or ship one with spark.archives (sparkdl submit --env)"
)
_KILLED = re.compile(
    r"Python worker exited unexpectedly|\bOOMKilled\b|\.OOM\b|exceeding (?:physical )?memory limits"
    r"|[Ee]xit code(?: is|:)? 137"
)
_MEMORY = (
    "A process was probably killed because it took more memory than it may: lower micro_batch_size or "
    "batch_size, or give executors more memory (spark.executor.memoryOverhead); some platforms allow a "
    "Python function 1 GB"
)
_FRAME_OF_SPARK = re.compile(r'  File "[^"]*/pyspark[^"]*", line .*\n(?:    .*\n)*')


def is_job_failure(error: BaseException) -> bool:
    """Return whether an exception is Spark's or Py4J's report of a failed job."""
    return type(error).__module__.startswith(("py4j.", "pyspark."))


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Let a Spark job that fails in a block raise what its task has said; ``doing`` says what it was for."""
    try:
        yield
    except Exception as error:
        if is_job_failure(error):
            raise task_error(error, doing) from None
        raise


@contextmanager
def tolerated(consequence: str) -> Iterator[None]:
    """Log a Spark job that fails in a block, and what comes of it, and go on."""
    try:
        yield
    except Exception as error:
        if not is_job_failure(error):
            raise
        logging.getLogger("sparkdl").debug("%s: %s", consequence, error)


def task_error(error: BaseException, doing: str) -> SparkdlError:
    """Turn py4j's report of a failed job into an error without py4j and JVM stacks.

    An error of sparkdl keeps its type; the user's own traceback follows the message.
    """
    text = str(error)
    begin = text.find("Traceback (most recent call last):")
    if begin < 0:
        java = str(getattr(error, "java_exception", "") or text).strip()
        first = java.splitlines()[0] if java else repr(error)
        if "Cannot run program" in first:  # the JVM's words for an interpreter that is not there
            return TaskError(f"Python did not start on the executors: {first}. {_SHIP}", code=_ENVIRONMENT)
        absent = re.search(r"No module named .*", java)  # daemon.py, or what it needs
        if absent is not None:
            return TaskError(
                f"Python did not start on the executors: {absent[0]}. {_SHIP}", code=_ENVIRONMENT
            )
        if _KILLED.search(java):
            return TaskError(f"a Spark job failed while {doing}: {first}. {_MEMORY}", code="task-memory")
        return TaskError(f"a Spark job failed while {doing}: {first}")
    remote = re.sub(r"\s*SQLSTATE: \w+\s*\Z", "", text[begin:].split("\n\tat ")[0].rstrip())
    root = _FRAME_OF_SPARK.sub("", remote.split(_CHAIN)[0])
    kind, message = _raised(remote)
    shown = f"{message}\n\nTraceback of the task that failed while {doing}:\n\n{root}"
    own = getattr(exceptions, kind.removeprefix("sparkdl.exceptions."), None)
    if kind == "ModuleNotFoundError":
        shown = f"{message} on the executors. {_SHIP}\n\n{root}"
        return TaskError(f"{kind}: {shown}", root, code=_ENVIRONMENT)
    if own is not None and own is not TaskError:
        typed: SparkdlError = own(shown)
        return typed
    return TaskError(f"{kind}: {shown}", root, code="task-python")


def _raised(traceback: str) -> tuple[str, str]:
    """Return type and message of the exception at the end of a traceback."""
    last = traceback.rsplit("Traceback (most recent call last):\n", 1)[-1]
    # The frames are indented; the exception is the first line that is not.
    lines = last.splitlines()
    start = next((i for i, line in enumerate(lines) if line[:1].strip()), len(lines) - 1)
    match = _RAISED.match("\n".join(lines[start:]))
    return (match["type"], match["message"] or "") if match else ("Exception", last)
