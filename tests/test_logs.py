"""Logs are quiet unless the environment asks for more; what a session prints: ``test_quiet.py``."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from sparkdl._spark import logs
from sparkdl.exceptions import ConfigError


@pytest.fixture(autouse=True)
def logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """The package's logger, which is put back as it was."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dx=1")
    monkeypatch.delenv(logs.VARIABLE, raising=False)
    logger = logging.getLogger("sparkdl")
    before = logger.level, list(logger.handlers)
    # Handlers of pytest, here and at the root, do not count.
    monkeypatch.setattr(logger, "hasHandlers", lambda: bool(streams(logger)))
    yield logger
    logger.setLevel(before[0])
    logger.handlers = before[1]


def streams(logger: logging.Logger) -> list[logging.Handler]:
    return [handler for handler in logger.handlers if type(handler) is logging.StreamHandler]


def test_by_default_nothing_changes(logger: logging.Logger) -> None:
    assert logs.set_up() is None
    assert not streams(logger)


def test_a_level_is_set_once(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.VARIABLE, "info")
    assert [logs.set_up() for _ in range(2)] == ["INFO", "INFO"]
    assert logger.level == logging.INFO
    assert len(streams(logger)) == 1


def test_a_level_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.VARIABLE, "loud")
    with pytest.raises(ConfigError, match="SPARKDL_LOG='LOUD': expected one of DEBUG"):
        logs.set_up()


def test_the_jvm_gets_a_configuration_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    options = logs.jvm_options()
    assert options.startswith("-Dx=1 -Dlog4j2.configurationFile=file:///")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", options)
    assert logs.jvm_options() == options
    assert logs._CONFIGURATION.is_file()


def test_a_stream_that_is_stopped_between_batches_says_nothing() -> None:
    lines = logs._CONFIGURATION.read_text().splitlines()
    jobs, shell = (line.partition(" = ")[2] for line in lines if ".regex = " in line)
    group = "Failed to cancel job group 011487ce-1c36-4446-8583-c4ab0770af3e. "
    assert re.fullmatch(jobs, f"{group}Cannot find active jobs for it.")
    assert not re.fullmatch(jobs, "Failed to cancel job 7.")
    assert re.fullmatch(shell, "Interrupted while joining on: Thread[Thread-45,5,main]")
