"""Secrets in URLs, confs and arguments are not shown, wherever they would appear."""

from __future__ import annotations

import json
import logging
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.runs import FakeRun

from sparkdl import redaction, session
from sparkdl._spark import logs  # noqa: F401  # logs has the filter
from sparkdl.cli import properties
from sparkdl.cli.clusters import CONF
from sparkdl.cli.runs.command import runs
from sparkdl.exceptions import CheckpointError, ConfigError, SparkdlError, TaskError
from sparkdl.summary import JsonLines
from sparkdl.summary.params import flatten
from sparkdl.train.checkpoint import CheckpointFolder

SECRET = "wJalrXUtnFEMI"


@pytest.mark.parametrize(
    ("shown", "hidden"),
    [
        (f"s3://AKIA:{SECRET}@bucket/run", "s3://***@bucket/run"),
        (f"'s3a://AKIA:{SECRET}/K7+x@bucket/run' is gone", "'s3a://***@bucket/run' is gone"),
        (f"a simplecache::ftp://me:{SECRET}@@host:21/x, b", "a simplecache::ftp://***@host:21/x, b"),
        (f"https://{SECRET}@github.com/x", "https://***@github.com/x"),
        (f"http://u:{SECRET}@h1 and http://u:{SECRET}@h2/", "http://***@h1 and http://***@h2/"),
        (f"https://h/x?X-Amz-Signature={SECRET}&a=1", "https://h/x?X-Amz-Signature=***&a=1"),
        (f"jdbc:postgresql://h/db?user=a&password={SECRET}", "jdbc:postgresql://h/db?user=a&password=***"),
        (f"redis://:{SECRET}@h", "redis://***@h"),
    ],
)
def test_credentials_in_urls(shown: str, hidden: str) -> None:
    assert redaction.text(shown) == hidden
    assert redaction.text(hidden) == hidden


@pytest.mark.parametrize(
    "shown",
    [
        "hdfs://namenode:8020/user/me@corp/x",
        "abfss://container@account.dfs.core.windows.net/x",
        "k8s://https://host:443/a@b",
        "http://[::1]:8080/a@b",
        "sftp://me@host/x",
        "s3://bucket/a:b@c",
        "expected rows: 3; found token=7, a@b",
        "file:///tmp/a:b@c",
    ],
)
def test_what_is_no_secret_stays(shown: str) -> None:
    assert redaction.text(shown) == shown


@given(st.text(max_size=200), st.from_regex(r"[\w+=.~!$]{1,40}", fullmatch=True))
def test_no_password_of_any_kind_is_left(around: str, password: str) -> None:
    url = f"s3://key:{password}#@bucket"
    assert redaction.text(f"{around} {url}").endswith("s3://***@bucket")


def test_long_texts_take_no_time() -> None:
    redaction.text("://" + "a:" * 100_000)
    redaction.text("://?" + "token" * 100_000)
    redaction.assignments("secret" * 50_000)


def test_confs_are_hidden_as_spark_does() -> None:
    found = redaction.confs(
        {
            "spark.hadoop.fs.s3a.secret.key": SECRET,
            "spark.hadoop.fs.s3a.access.key": SECRET,
            "spark.hadoop.fs.azure.account.key.x.blob.core.windows.net": SECRET,
            "spark.driver.extraJavaOptions": f"-Djavax.net.ssl.keyStorePassword={SECRET}",
            "spark.archives": f"https://me:{SECRET}@host/e.zip",
            "spark.executor.cores": "4",
            "spark.mine": SECRET,
            "spark.redaction.regex": "(?i)MINE",
        }
    )
    assert SECRET not in json.dumps(found)
    assert found["spark.executor.cores"] == "4"
    assert found["spark.archives"] == "https://***@host/e.zip"


def test_a_pattern_that_python_cannot_read_hides_all() -> None:
    found = redaction.confs({"spark.redaction.regex": r"\p{Alpha}+(?<x>", "spark.mine": SECRET})
    assert set(found.values()) == {redaction.HIDDEN}


def test_our_own_confs_are_shown() -> None:
    own = session.recommended()
    for file in CONF.glob("*.conf"):
        own |= properties.read(file)
    assert redaction.confs(own) == own


def test_arguments() -> None:
    given_ = (
        "--api-token",
        SECRET,
        "--lr",
        "0.1",
        f"--password={SECRET}",
        "--token",
        "--x",
        f"ftp://a:{SECRET}@h",
    )
    shown = list(redaction.arguments(given_))
    assert SECRET not in str(shown)
    assert shown[2:4] == ["--lr", "0.1"]
    assert shown[6] == "--x"


# -- where they would appear ---------------------------------------------------------------------------

URL = f"s3://AKIA:{SECRET}@bucket/run"


@pytest.mark.parametrize("cls", [SparkdlError, ConfigError, CheckpointError])
def test_in_errors(cls: type[SparkdlError]) -> None:
    error = cls(f"{URL} cannot be read", URL)
    assert SECRET not in f"{error} {error!r} {error.args} {pickle.loads(pickle.dumps(error))}"
    assert "s3://***@bucket/run cannot be read" in str(error)


def test_in_errors_of_tasks() -> None:
    error = TaskError(f"failed: {URL}", f"Traceback: open({URL})")
    assert SECRET not in f"{error} {error.remote_traceback}"


def test_in_addresses_that_cannot_be_opened() -> None:
    for opened in (
        lambda: CheckpointFolder(f"pigeon://a:{SECRET}@b"),
        lambda: JsonLines(f"pigeon://a:{SECRET}@b"),
    ):
        with pytest.raises(ConfigError) as raised:
            opened()
        assert SECRET not in str(raised.value)


def test_in_options_of_a_run() -> None:
    found = flatten({"timeline": URL, "hooks": [URL, "x" * 480 + URL], "other": {"path": Path(URL)}})
    assert not re.search("wJalr", str(found))
    assert found["timeline"] == "s3://***@bucket/run"


def test_in_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="sparkdl"):
        logging.getLogger("sparkdl").info("wrote %s in %.1f s", URL, 0.25)
    assert caplog.messages == ["wrote s3://***@bucket/run in 0.2 s"]


def test_in_the_reason_why_a_run_ended(tmp_path: Path) -> None:
    hook, run = JsonLines(tmp_path / "a.jsonl"), FakeRun()
    hook.on_train_begin(run)
    run.iterate(hook)
    run.error = OSError(f"{URL}: access denied")
    hook.on_train_end(run)
    assert SECRET not in (tmp_path / "a.jsonl").read_text()
    (found,) = runs(str(tmp_path))
    assert found.reason == "OSError: s3://***@bucket/run: access denied"


def test_in_warnings_about_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    hook: Any = JsonLines(f"memory://a:{SECRET}@b/x.jsonl")
    run = FakeRun()
    hook.on_train_begin(run)

    def refuse(*_: object) -> None:
        raise PermissionError(URL)

    monkeypatch.setattr(hook._target._store, "put_file", refuse)
    with pytest.warns(UserWarning, match="could not be written|is incomplete") as caught:
        hook.on_train_end(run)
    assert SECRET not in " ".join(str(warning.message) for warning in caught)
