"""Every error that sparkdl raises on purpose, and its codes.

::

    SparkdlError
    ├── CheckpointError        checkpoints cannot be written
    ├── ConfigError            a parameter has a value that cannot work
    ├── DataError              a column or row cannot become a tensor
    ├── ModelError             the module, or the loss, fails on the data
    │   └── NonFiniteError     loss or gradient became NaN or infinite
    ├── OptimizerError         the optimizer cannot be trained with
    ├── SerializationError     an object cannot be shipped to the executors
    └── TaskError              a task failed on an executor, after Spark's own retries

    SparkdlWarning             something goes on, and its result may not be what was meant

Each message names what was found, what was expected and what to do. It ends with a link to a section of
``docs/troubleshooting.md``, whose anchor is the error's :attr:`~SparkdlError.code`::

    column 'age', row 17: null; drop or fill nulls first [docs/troubleshooting.md#data-null]

Codes are stable: programs may look at them. Each class has a code of its own, and finer ones where
different causes want different remedies. The checks of options at the end raise :class:`ConfigError`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar, TypeGuard

from sparkdl import redaction

_PAGE = "docs/troubleshooting.md"
_LINK = re.compile(rf"\s*\[{re.escape(_PAGE)}#(?P<code>[a-z-]+)\]")


class SparkdlError(Exception):
    """Base class of all errors raised by sparkdl.

    A message that quotes another error loses that error's link; its code is kept, if this class has it
    and no other is given. URLs in it lose their credentials.

    Args:
        args: the message.
        code: one of :attr:`codes`; by default the first.

    Attributes:
        codes: what errors of this class may have as code.
        code: what happened, in a word that stays the same from version to version.
        result: the :class:`sparkdl.train.FitResult` of what a fit had trained before it happened; ``None``
            outside of one. Exceptions of other classes that leave a fit have it as well.
    """

    codes: ClassVar[tuple[str, ...]] = ("sparkdl",)
    code: str
    result: Any = None

    def __init__(self, *args: object, code: str | None = None) -> None:
        quoted: list[str] = []
        if args and isinstance(args[0], str):
            quoted = _LINK.findall(args[0])
            args = (_LINK.sub("", args[0]), *args[1:])
        super().__init__(*(redaction.text(arg) if isinstance(arg, str) else arg for arg in args))
        chosen = code or next((found for found in quoted if found in self.codes), self.codes[0])
        if chosen not in self.codes:
            raise ValueError(f"{type(self).__name__} has no code {chosen!r}; it has {', '.join(self.codes)}")
        self.code = chosen

    def __str__(self) -> str:
        """Return the message and the link."""
        message = super().__str__()
        gap = "\n" if "\n" in message else " "
        return f"{message}{gap}[{_PAGE}#{self.code}]"


class ConfigError(SparkdlError, ValueError):
    """A parameter has a value that cannot work."""

    codes: ClassVar[tuple[str, ...]] = (
        "config",
        "config-cluster",
        "config-command",
        "config-connect",
        "config-damaged",
        "config-encryption",
        "config-environment",
        "config-executors",
        "config-package",
        "config-resume",
        "config-saved",
        "config-source",
        "config-trust",
    )


class CheckpointError(SparkdlError, OSError):
    """Checkpoints cannot be written; those from before are still there."""

    codes: ClassVar[tuple[str, ...]] = ("checkpoint", "checkpoint-folder")


class DataError(SparkdlError, ValueError):
    """A column or row cannot become a tensor."""

    codes: ClassVar[tuple[str, ...]] = (
        "data",
        "data-changed",
        "data-column",
        "data-empty",
        "data-null",
        "data-shape",
        "data-source",
        "data-store",
        "data-transform",
        "data-type",
        "data-value",
    )


class ModelError(SparkdlError):
    """The module or the loss cannot process the data.

    Attributes:
        input: position of the module's input that is at fault, where that is known.
    """

    input: int | None = None
    codes: ClassVar[tuple[str, ...]] = (
        "model",
        "model-gradient",
        "model-input",
        "model-output",
        "model-parameters",
        "model-state",
        "model-teacher",
        "model-weights",
    )


class NonFiniteError(ModelError):
    """Loss or gradient became NaN or infinite."""

    codes: ClassVar[tuple[str, ...]] = ("non-finite",)


class OptimizerError(SparkdlError, ValueError):
    """The optimizer cannot be trained with: it needs a closure, fails, or keeps what no task can carry on."""

    codes: ClassVar[tuple[str, ...]] = ("optimizer",)


class SerializationError(SparkdlError):
    """An object cannot be shipped to the executors."""

    codes: ClassVar[tuple[str, ...]] = ("serialization", "serialization-code")


class TaskError(SparkdlError):
    """A task failed on an executor, after Spark's own retries.

    Attributes:
        remote_traceback: the Python traceback of the task, empty when the JVM failed.
    """

    codes: ClassVar[tuple[str, ...]] = ("task", "task-environment", "task-memory", "task-python")

    def __init__(self, message: str, remote_traceback: str = "", *, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.remote_traceback = redaction.text(remote_traceback)


class SparkdlWarning(UserWarning):
    """Something goes on, and its result may not be what was meant.

    Args:
        message: the warning; it gets a link like that of an error.
        code: the anchor of the link.

    Attributes:
        code: what was found, in a word that stays the same from version to version.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(redaction.text(message), code)
        self.code = code

    def __str__(self) -> str:
        """Return the message and the link."""
        return f"{self.args[0]} [{_PAGE}#{self.code}]"


# -- options ----------------------------------------------------------------------------------


def is_integer(value: object, least: int) -> TypeGuard[int]:
    """Return whether a value is an integer of at least ``least``, and no boolean."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number, and no boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def integer_option(owner: str, name: str, value: object, least: int) -> int:
    """Return an option that is an integer of at least ``least``."""
    if not is_integer(value, least):
        raise ConfigError(f"{owner}({name}={value!r:.100}): expected an integer of at least {least}")
    return value


def sequence_option(name: str, value: object, expected: str) -> Sequence[Any]:
    """Return an option that is a list."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{name}={value!r:.100}: expected a list of {expected}")
    return value
