"""Ctrl-C between jobs: the first one ends training after the current iteration."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible(until: str = "this iteration") -> Iterator[Callable[[], bool]]:
    """Watch for SIGINT inside the block; yields a function that tells whether one came.

    A second SIGINT gets the previous handler, which cancels the running job. Signals reach only
    the main thread; elsewhere the function always returns ``False``.

    Args:
        until: what is completed first, for the message.
    """
    pressed = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    previous = signal.getsignal(signal.SIGINT)

    def handler(number: int, stack: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            if callable(previous):
                previous(number, stack)
            raise KeyboardInterrupt
        pressed = True
        print(
            f"\nsparkdl: stopping after {until}; press Ctrl-C again to stop at once",
            file=sys.stderr,
        )

    signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, previous)
