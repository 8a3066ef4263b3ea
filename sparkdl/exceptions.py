"""Every error that sparkdl raises on purpose.

::

    SparkdlError
    ├── CheckpointError        checkpoints cannot be written
    ├── ConfigError            a parameter has a value that cannot work
    ├── DataError              a column or row cannot become a tensor
    ├── ModelError             the module, or the loss, fails on the data
    │   └── NonFiniteError     loss or gradient became NaN or infinite
    ├── OptimizerError         the optimizer cannot be applied to slices of the weights
    ├── SerializationError     an object cannot be shipped to the executors
    └── TaskError              a task failed on an executor, after Spark's own retries

Each message names what was found, what was expected and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkdl.train.result import FitResult


class SparkdlError(Exception):
    """Base class of all errors raised by sparkdl."""


class ConfigError(SparkdlError, ValueError):
    """A parameter has a value that cannot work."""


class CheckpointError(SparkdlError, OSError):
    """Checkpoints cannot be written; those from before are still there.

    Attributes:
        result: what was trained before it happened; ``None`` outside of a fit.
    """

    result: FitResult | None = None


class DataError(SparkdlError, ValueError):
    """A column or row cannot become a tensor."""


class ModelError(SparkdlError):
    """The module or the loss cannot process the data."""


class NonFiniteError(ModelError):
    """Loss or gradient became NaN or infinite.

    Attributes:
        result: what was trained before it happened; ``None`` outside of a fit.
    """

    result: FitResult | None = None


class OptimizerError(SparkdlError, ValueError):
    """The optimizer cannot be applied to slices of the weights."""


class SerializationError(SparkdlError):
    """An object cannot be shipped to the executors."""


class TaskError(SparkdlError):
    """A task failed on an executor, after Spark's own retries.

    Attributes:
        remote_traceback: the Python traceback of the task, empty when the JVM failed.
        result: what was trained before it happened; ``None`` outside of a fit.
    """

    result: FitResult | None = None

    def __init__(self, message: str, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.remote_traceback = remote_traceback
