"""Ctrl-C during a fit: in order, at once, and in one line."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdl.exceptions import TaskError
from sparkdl.train.interrupt import at_once, interruptible, raise_if_stopped


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    before, hook, filters = signal.getsignal(signal.SIGINT), sys.excepthook, logging.getLogger().filters[:]
    yield
    assert signal.signal(signal.SIGINT, before) is before
    assert logging.getLogger().filters == filters
    sys.excepthook = hook
    raise_if_stopped()


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL, lambda *_: None])
def test_a_second_ctrl_c_ends_at_once_whatever_the_handler_before(handler: Any, capsys: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with interruptible() as interrupted:
            press()
            assert interrupted()
            with pytest.raises(KeyboardInterrupt):
                press()
    finally:
        signal.signal(signal.SIGINT, before)
    assert "press Ctrl-C again" in capsys.readouterr().err


def stop_and_fail() -> None:
    with at_once():
        with pytest.raises(KeyboardInterrupt):
            press()
        with pytest.raises(KeyboardInterrupt):
            raise_if_stopped()  # as a job that is tried again asks
        raise TaskError("Answer from Java side is empty")


def test_a_failure_that_came_of_the_stop_is_the_stop() -> None:
    with pytest.raises(KeyboardInterrupt, match="stopped at once"):
        stop_and_fail()
    with at_once():  # the next block knows nothing of it
        raise_if_stopped()


def test_sparks_handler_is_called_in_a_thread_for_its_connection_may_be_in_use() -> None:
    seen: list[threading.Thread] = []

    def cancel_all_jobs(number: int, stack: Any) -> None:
        seen.append(threading.current_thread())
        raise KeyboardInterrupt

    cancel_all_jobs.__module__ = "pyspark.core.context"
    before = signal.signal(signal.SIGINT, cancel_all_jobs)
    try:
        with pytest.raises(KeyboardInterrupt), at_once():
            press()
    finally:
        signal.signal(signal.SIGINT, before)
    assert [thread.name for thread in seen] == ["sparkdl-cancel"]


def stop_and_log(*messages: str) -> None:
    with at_once():
        try:
            press()
        finally:
            for message in messages:
                logging.getLogger().error(message)


def test_py4j_logs_no_traceback_of_it(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyboardInterrupt):
        stop_and_log("KeyboardInterrupt while sending command.", "something else")
    assert caplog.messages == ["something else"]


SCRIPT = """
import os, signal
from sparkdl.train.interrupt import interruptible
with interruptible():
    os.kill(os.getpid(), signal.SIGINT)
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        raise OSError("a connection that the first error closed")
"""


def test_a_script_ends_with_one_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert ended.stderr.strip().splitlines() == [
        "sparkdl: stopping after this iteration; press Ctrl-C again to stop at once",
        "KeyboardInterrupt: sparkdl: stopped at once, by Ctrl-C",
    ]
    assert ended.returncode == -signal.SIGINT
