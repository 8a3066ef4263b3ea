"""The amount of logging: little by default, more by the environment variable ``SPARKDL_LOG``."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from sparkdl import redaction
from sparkdl.exceptions import ConfigError

VARIABLE = "SPARKDL_LOG"
LEVELS = ("DEBUG", "INFO", "WARN", "ERROR")
_CONFIGURATION = Path(__file__).parents[1] / "conf" / "log4j2.properties"


def _redact(record: logging.LogRecord) -> bool:
    """Take the credentials out of the URLs of what the logger ``sparkdl`` says; a filter."""
    record.msg, record.args = redaction.text(record.getMessage()), None
    return True


logging.getLogger("sparkdl").addFilter(_redact)


def level() -> str | None:
    """Return the level that the environment asks for, in upper case; ``None`` if it asks for none."""
    value = os.environ.get(VARIABLE, "").upper()
    if not value:
        return None
    if value not in LEVELS:
        raise ConfigError(f"{VARIABLE}={value!r}: expected one of {', '.join(LEVELS)}")
    return value


def jvm_options() -> str:
    """Return ``SPARK_SUBMIT_OPTS`` with which a driver's JVM that starts now logs as much as is asked for.

    Options that choose a configuration of log4j themselves are left as they are.
    """
    found = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if "log4j" in found:
        return found
    return f"{found} -Dlog4j2.configurationFile={_CONFIGURATION.as_uri()}".strip()


def set_up() -> str | None:
    """Let this process log what the environment asks for; return the level.

    Spark's JVM, if it has not started yet, logs warnings unless another level is asked for. The logger
    ``sparkdl`` writes to stderr, unless the program has set up logging itself.
    """
    wanted = level()
    os.environ["SPARK_SUBMIT_OPTS"] = jvm_options()
    if wanted is not None:
        logger = logging.getLogger("sparkdl")
        logger.setLevel(wanted)
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(
                logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
            )
            logger.addHandler(handler)
    return wanted
