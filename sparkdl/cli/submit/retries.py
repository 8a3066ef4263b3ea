"""Retries of ``sparkdl submit``: whether another driver starts, and after how long.

The exit status alone does not tell a lost cluster from an error of the user: both end Python with status 1.
So the driver leaves a note (:mod:`sparkdl.attempts`), which counts for more than the status:

===================================================================  ============
status 0                                                             done
the driver's SparkContext had ended when an exception ended it       another one
an exception ended it, for no executor came                          another one
its interpreter ended in order: exceptions, ``sys.exit``             the end
a signal other than Ctrl-C killed it or its JVM (128 + n)            another one
it ended without a word: ``os._exit``, an exit of its JVM            another one
no driver came so far as to import sparkdl: wrong options            the end
===================================================================  ============

In cluster mode the status is that of a client. If a signal ends this client, the driver may go on, and
another one would be too many. A status of 0 does not count without the driver's note.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from sparkdl.attempts import Note, Notes
from sparkdl.cli.arguments import say

LONGEST_DELAY = 300.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a job whose driver has ended."""

    again: bool  # whether another driver is worth a try
    why: str  # in words


def delay(first: float, failures: int) -> float:
    """Return the seconds before the next attempt: they double with each failure in a row, up to a bound.

    >>> [delay(10, failures) for failures in (1, 2, 3, 6, 2000)]
    [10.0, 20.0, 40.0, 300.0, 300.0]
    """
    doublings = min(max(failures - 1, 0), 64)
    return min(first * 2.0**doublings, LONGEST_DELAY)


def judge(status: int, note: Note, *, remote: bool = False) -> Verdict:
    """Say what becomes of a job; ``status`` is spark-submit's, 128 + n if signal n ended it."""
    number = _signal(status)
    if status == 0 and (note.ended or not note.pid or not remote):
        return Verdict(False, "done")
    if note.lost:
        return Verdict(True, f"the driver lost its cluster: {note.lost}")
    if note.ended:
        return Verdict(False, f"the script ended with {note.failed or f'exit status {status}'}")
    if number is not None and remote:
        return Verdict(False, f"{number.name} ended the client; the driver may still run in the cluster")
    if number is signal.SIGINT:
        return Verdict(False, "it was interrupted")
    if number is not None:
        return Verdict(True, f"{number.name} killed the driver")
    if note.pid:
        return Verdict(True, f"the driver vanished (exit status {status})")
    return Verdict(False, f"exit status {status}, before the script imported sparkdl")


def supervise(
    attempt: Callable[[], int],
    notes: Notes,
    *,
    retries: int,
    first_delay: float,
    pause: Callable[[float], None],
    stopped: Callable[[], bool],
    remote: bool,
) -> int:
    """Run attempts until one is the last, and return its exit status.

    An attempt that has written a checkpoint sets the count of failures back, as one that fails after YARN's
    validity interval does. ``retries`` counts failures in a row, without a new checkpoint between them, after
    which another one is tried; ``first_delay`` is seconds before the second attempt, ``remote`` whether
    drivers run in the cluster.
    """
    notes.create()
    number, failures = 0, 0
    reached: dict[str, int] = {}
    while True:
        number += 1
        notes.write(number, Note())
        status = attempt()
        note = notes.read(number)
        verdict = judge(status, note, remote=remote)
        if stopped() or not verdict.again:
            if verdict.why != "done":
                say(f"attempt {number}: {verdict.why}; no retry{' after a signal' * stopped()}")
            return status
        now = _furthest(reached, note)
        failures = 0 if now != reached else failures + 1
        reached = now
        where = ", ".join(f"iteration {n} in {path}" for path, n in reached.items()) or "no checkpoint"
        told = f"attempt {number}: {verdict.why}; reached: {where}"
        if failures > retries:
            say(f"{told}; {failures} failures in a row without a new checkpoint, --retries {retries}")
            return status or 1
        seconds = delay(first_delay, failures)
        say(f"{told}; attempt {number + 1} begins in {seconds:g} s (failures without progress: {failures})")
        pause(seconds)
        if stopped():
            return status


def _furthest(reached: Mapping[str, int], note: Note) -> dict[str, int]:
    """Return the iteration of the newest checkpoint by folder."""
    found = {path: place.newest for path, place in note.places if place.newest}
    return dict(reached) | {path: max(n, reached.get(path, 0)) for path, n in found.items()}


def _signal(status: int) -> signal.Signals | None:
    with suppress(ValueError):
        return signal.Signals(status - 128) if status > 128 else None
    return None
