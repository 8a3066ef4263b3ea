"""Spark Connect between a client and a server of different versions, which pip fetches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from connect_checks import check_whole
from support.connect import missing, run_client, server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
]

WHOLE = Path(__file__).with_name("connect_whole.py")
OTHERS = ("4.1", "4.2")
HERE = pyspark.__version__


def fetch(folder: Path, wanted: str) -> Path:
    """Install a package alone in a folder, or skip the test."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder),
        wanted,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{wanted} cannot be fetched: {done.stderr.strip()[-200:]}")
    return folder


def check(folder: Path, url: str, packages: Path | None, client: str, spark: str) -> None:
    """Check that a client has all of a fit."""
    found = run_client(folder, WHOLE, url, packages=packages)
    assert found["version"].startswith(client)
    assert found["server"].startswith(spark)
    check_whole(found)


@pytest.mark.parametrize("other", OTHERS)
def test_a_client_of_another_version(tmp_path: Path, other: str) -> None:
    packages = fetch(tmp_path / "packages", f"pyspark-client=={other}.*")
    with server(tmp_path) as running:
        check(tmp_path, running.url, packages, other, HERE)


@pytest.mark.parametrize("other", OTHERS)
def test_a_server_of_another_version(tmp_path: Path, other: str) -> None:
    packages = fetch(tmp_path / "packages", f"pyspark=={other}.*")
    with server(tmp_path, packages=packages) as running:
        check(tmp_path, running.url, None, HERE, other)
