"""Ctrl-C during a fit: the first ends it in order, a second at once and in one line."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

_CANCEL_S = 5.0
_ECHOES = ("Exception while sending command.", "KeyboardInterrupt while sending command.")
_stopped: list[KeyboardInterrupt] = []  # what a signal has raised, until its block ends


@contextmanager
def interruptible(until: str = "this iteration") -> Iterator[Callable[[], bool]]:
    """Watch for SIGINT inside the block; yields a function that tells whether one came.

    A second SIGINT gets the previous handler, and raises KeyboardInterrupt. Signals reach only the main
    thread; elsewhere the function always returns ``False``.
    """
    if not _is_main():
        yield lambda: False
        return
    pressed = False
    with at_once() as stop:

        def handler(number: int, stack: FrameType | None) -> None:
            nonlocal pressed
            if pressed:
                stop(number, stack)
            pressed = True
            print(
                f"\nsparkdl: stopping after {until}; press Ctrl-C again to stop at once",
                file=sys.stderr,
            )

        with _handled_by(handler):
            yield lambda: pressed


@contextmanager
def at_once() -> Iterator[Callable[[int, FrameType | None], object]]:
    """End the block at SIGINT: the running job is cancelled, and a script ends with one line.

    What fails because of it does not count: KeyboardInterrupt leaves the block, whatever the errors on the
    way were. Yields the handler.
    """
    if not _is_main():
        yield lambda number, stack: None
        return
    previous = signal.getsignal(signal.SIGINT)
    outer = len(_stopped)

    def handler(number: int, stack: FrameType | None) -> None:
        error = KeyboardInterrupt("sparkdl: stopped at once, by Ctrl-C")
        first = not _stopped
        _stopped.append(error)
        logging.getLogger().addFilter(_is_no_echo)
        _end_in_one_line(error)
        if first and callable(previous):
            _cancel(previous, number, stack)
        raise error

    with _handled_by(handler):
        try:
            yield handler
        except BaseException as found:
            if len(_stopped) > outer and found not in _stopped:
                raise _stopped[-1] from None
            raise
        finally:
            if len(_stopped) > outer:
                del _stopped[outer:]
                logging.getLogger().removeFilter(_is_no_echo)


def raise_if_stopped() -> None:
    """Raise what a signal has raised already, if an error came of it: nothing is to be tried again."""
    if _stopped:
        raise _stopped[-1]


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _cancel(
    previous: Callable[[int, FrameType | None], object], number: int, stack: FrameType | None
) -> None:
    """Call the handler that was there before; it raises KeyboardInterrupt itself, or returns.

    PySpark's asks the JVM to cancel all jobs. The main thread may be in the middle of another call of the
    JVM, whose connection takes one at a time, so it runs in a thread, which has a connection of its own.
    """

    def call() -> None:
        with suppress(KeyboardInterrupt, Exception):
            previous(number, stack)

    if getattr(previous, "__module__", "").startswith("pyspark."):
        thread = threading.Thread(target=call, daemon=True, name="sparkdl-cancel")
        thread.start()
        thread.join(_CANCEL_S)
    else:
        with suppress(KeyboardInterrupt):
            previous(number, stack)


def _is_no_echo(record: logging.LogRecord) -> bool:
    """Return False for the tracebacks that py4j logs when KeyboardInterrupt ends one of its calls."""
    return record.msg not in _ECHOES


def _end_in_one_line(error: KeyboardInterrupt) -> None:
    """Let a script that the error ends say so without a traceback."""
    before = sys.excepthook

    def hook(kind: type[BaseException], found: BaseException, traceback: TracebackType | None) -> None:
        if found is error:
            error.__context__ = error.__cause__ = traceback = None
            error.__notes__ = []
            error.__traceback__ = None
        before(kind, found, traceback)

    sys.excepthook = hook
