"""Trusts code for all loads inside of a ``with`` block, for loaders without options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sparkdl.saved.trust import LISTED_ONLY, Entry, Trust

_trusted: ContextVar[Trust] = ContextVar("sparkdl trusted", default=LISTED_ONLY)


@contextmanager
def trust(*entries: Entry) -> Iterator[None]:
    """Trust packages, modules or classes in all loads inside of ``with``, in this thread.

    For pipelines and tuned models, which do not hand options on to their stages::

        with sparkdl.ml.trust("mypackage.nets"):
            model = PipelineModel.load(path)

    Models may name them besides what torch, torchmetrics and sparkdl have. Spark itself imports the classes
    of a pipeline's stages, whatever they are: :func:`sparkdl.ml.load` looks at them first.

    Args:
        entries: such as ``"mypackage"``, ``"mypackage.nets"``, ``"mypackage.nets:Net"`` or a class.

    Raises:
        ConfigError: if an entry cannot be trusted.
    """
    token = _trusted.set(trusted() | Trust.of(entries))
    try:
        yield
    finally:
        _trusted.reset(token)


def trusted() -> Trust:
    """Return the trust of the enclosing ``with`` blocks."""
    return _trusted.get()
