"""PySpark's daemon, for one machine: a worker ends without a traceback if its reader has stopped.

``limit``, ``show`` or ``head`` over a Python function stop reading before it has sent everything. Over a Unix
socket the worker notices, and since Spark 4.1 PySpark's daemon prints a ``BrokenPipeError`` for each such
worker, as if something had failed; and also for a worker that ends because it was idle for a minute, or
because the session stops. :func:`sparkdl.session.builder` names this module to Spark
(``spark.python.daemon.module``) in local mode, where workers write to the user's screen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "sparkdl.daemon"

Serve = Callable[[Any, bool], int]
"""What serves tasks on a socket, authenticated or not, until the worker's exit status is known."""


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

    vars(daemon)["worker"] = quiet(daemon.worker)
    daemon.manager()
