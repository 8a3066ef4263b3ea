"""A stream that is being learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from sparkdl.online.trainer import OnlineTrainer


class OnlineQuery:
    """A running query whose batches a model learns from.

    Args:
        query: Spark's query.
        online: who learns.

    Attributes:
        query: as given.
        online: as given.
    """

    def __init__(self, query: StreamingQuery, online: OnlineTrainer) -> None:
        self.query = query
        self.online = online

    @property
    def is_active(self) -> bool:
        """Whether batches are still awaited or learned."""
        return bool(self.query.isActive)

    @property
    def progress(self) -> dict[str, Any]:
        """Of the last batch what Spark tells (``"stream"``), and its entry in the history (``"learned"``)."""
        history = self.online.history
        last = self.query.lastProgress
        return {"stream": last, "learned": history[-1] if history else None}

    def exception(self) -> Exception | None:
        """Return what ended the query, ``None`` if nothing did."""
        return self.query.exception()

    def await_termination(self, timeout: int | None = None) -> bool:
        """Wait until the query ends; return whether it has.

        Args:
            timeout: seconds to wait at most.

        Raises:
            StreamingQueryException: if an error has ended it; its text has that of sparkdl's error.
        """
        found = self.query.awaitTermination(timeout)
        return timeout is None or bool(found)

    def stop(self) -> None:
        """End the query when the batch that is being learned is committed."""
        with self.online.between_batches():
            self.query.stop()

    def __repr__(self) -> str:
        return f"OnlineQuery({self.query.id}, {'active' if self.is_active else 'ended'})"
