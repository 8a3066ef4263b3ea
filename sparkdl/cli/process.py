"""The process that a command starts for its user, and the signals that are meant for it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

_HEARTBEAT_S = 0.5
_MOST_INTERRUPTS = 2  # a fit takes the first for its end, the second for one at once
_IN_A_ROW_S = 10.0  # a script goes on after a fit, and the next one may be interrupted, too


class Child:
    """Runs one process after the other, each on this process's own streams.

    With ``alone`` each has a process group of its own: what it leaves running ends with it, so that the next
    one finds no files in use; it cannot read from a terminal then. ``stopped`` tells that a signal asks this
    process to end.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self.stopped = False
        self._alone = alone
        self._waiting: list[int] = []
        self._ignored = False
        self._interrupts: list[float] = []
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], *, ignores_interrupts: bool = False
    ) -> int:
        """Run a command with more variables and return its exit status, 128 + n if signal n ended it.

        With ``ignores_interrupts`` Ctrl-C is for those of its processes that ask for it: Spark's JVM does
        not, the driver's Python does. A third Ctrl-C in a row asks the command itself to end.
        """
        self._ignored = ignores_interrupts
        self._process = process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL if self._alone else None,
            process_group=0 if self._alone else None,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN) if ignores_interrupts else None,
        )
        try:
            for number in self._waiting:  # what came before the process was there
                self._send(number)
            status = _wait(process)
        finally:
            self._process = None
            if self._alone:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        return status if status >= 0 else 128 - status

    def pause(self, seconds: float) -> None:
        """Wait, unless this process is asked to end."""
        end = time.monotonic() + seconds
        while not self.stopped and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _HEARTBEAT_S))

    def pass_on(self, number: int, frame: object) -> None:
        """Handle a signal: it is for the process."""
        self.stopped = True
        if number == signal.SIGINT:
            now = time.monotonic()
            self._interrupts = [*(then for then in self._interrupts if then > now - _IN_A_ROW_S), now]
            if self._ignored and len(self._interrupts) > _MOST_INTERRUPTS:
                number = signal.SIGTERM
            elif not self._alone:
                return  # a terminal sends Ctrl-C to all processes of the group
        if self._process is None:
            self._waiting.append(number)
        else:
            self._send(number)

    def _send(self, number: int) -> None:
        if self._process is None:
            return
        if self._alone:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)


@contextmanager
def forwarding(*, alone: bool = False) -> Iterator[Child]:
    """Pass SIGTERM, SIGHUP and Ctrl-C on to the process that runs.

    The job may take its time to end in order. This process waits for it in any case, and removes its own
    files then.
    """
    child = Child(alone=alone)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if number != signal.SIGHUP or before[number] != signal.SIG_IGN:  # by nohup
            signal.signal(number, child.pass_on)
    try:
        yield child
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process in short waits, and return its status.

    Python runs signal handlers in the main thread alone, and a signal that the kernel gave to another thread
    does not wake the main thread from a wait without end.
    """
    while True:
        try:
            return process.wait(_HEARTBEAT_S)
        except subprocess.TimeoutExpired:
            continue
