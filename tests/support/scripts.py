"""A folder with a script to submit, and no settings of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest


def script_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = "") -> Path:
    """Make a folder the current one, with a ``train.py``, and hide what this machine says of Spark."""
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_PYTHON", "SPARK_SUBMIT_OPTS", "SPARKDL_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    Path("train.py").write_text(text)
    return folder
