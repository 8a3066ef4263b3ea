"""The command that starts Jupyter: what it gives to kernels, and what other users of the machine see."""

from __future__ import annotations

import json
import os
import shlex
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from sparkdl.__main__ import main
from sparkdl.cli import notebook, properties
from sparkdl.exceptions import ConfigError

JOB = """
master = "spark://head:7077"
script = "train.py"

[resources]
cores = 4

[conf]
"spark.hadoop.fs.s3a.secret.key" = "wJalr"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_PYTHON", "SPARK_SUBMIT_OPTS", "SPARKDL_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(**given: Any) -> Namespace:
    return Namespace(
        **{"master": None, "conf_file": None, "conf": [], "folder": Path(), "port": 8888} | given
    )


def test_the_token_is_in_a_private_file_and_the_server_on_localhost_only(folder: Path) -> None:
    begun = notebook.prepare(folder, "jupyterlab", "local[2]", {"spark.x": "wJalr"}, folder, 8899)
    (config,) = [part.removeprefix("--config=") for part in begun.command if part.startswith("--config=")]
    found = json.loads(Path(config).read_text())
    token = found["IdentityProvider"]["token"]
    assert len(token) >= 40
    assert found["ServerApp"]["ip"] == "127.0.0.1"
    assert (found["ServerApp"]["port"], found["ServerApp"]["port_retries"]) == (8899, 0)
    assert found["ServerApp"]["allow_root"] == (os.geteuid() == 0)
    assert Path(config).stat().st_mode & 0o777 == 0o600
    seen = " ".join(begun.command) + " ".join(begun.environment.values())
    assert token not in seen
    assert "wJalr" not in seen
    assert begun.command[:3] == (sys.executable, "-m", "jupyterlab")
    assert f"ssh -N -L 8899:localhost:8899 {notebook.getuser()}@" in begun.told
    assert f"http://localhost:8899/?token={token}" in begun.told


def test_kernels_begin_sessions_with_the_confs_of_the_job(folder: Path) -> None:
    (folder / "job.toml").write_text(JOB)
    master, confs = notebook.confs_of(
        asked(conf_file=Path("job.toml"), conf=[("spark.task.maxFailures", "9")])
    )
    assert master == "spark://head:7077"
    assert (confs["spark.executor.cores"], confs["spark.task.maxFailures"]) == ("4", "9")
    assert confs["spark.shuffle.compress"] == "false"
    begun = notebook.prepare(folder, "notebook", master, confs, folder, 8899)
    arguments = shlex.split(begun.environment["PYSPARK_SUBMIT_ARGS"])
    assert arguments[:2] == ["--master", "spark://head:7077"]
    assert arguments[-1] == "pyspark-shell"
    file = Path(arguments[3])
    assert properties.read(file) == confs
    assert file.stat().st_mode & 0o777 == 0o600
    assert begun.environment["PYSPARK_PYTHON"] == sys.executable
    ready = notebook.confs_of(asked(master="yarn", conf=[("spark.pyspark.python", "/opt/python")]))[1]
    (folder / "b").mkdir()
    begun = notebook.prepare(folder / "b", "notebook", "yarn", ready, folder, 8899)
    assert begun.environment["PYSPARK_PYTHON"] == "/opt/python"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "no master: give --master"),
        ({"master": "head"}, "--master 'head': expected"),
        ({"master": "yarn", "conf": [("spark.submit.deployMode", "cluster")]}, "expected 'client'"),
    ],
)
def test_sessions_that_cannot_be(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        notebook.confs_of(asked(**given))


def test_what_is_missing_or_wrong_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(notebook, "find_spec", lambda name: None)
    assert main(["notebook", "--master", "local[2]"]) == 1
    assert "neither jupyterlab nor notebook is installed" in capsys.readouterr().err
    monkeypatch.setattr(notebook, "find_spec", lambda name: name)
    assert main(["notebook", "--master", "local[2]", "--folder", "none"]) == 1
    assert "--folder 'none': expected a folder" in capsys.readouterr().err
    assert main(["notebook", "--master", "local[2]", "--port", "0"]) == 1
    assert "--port 0: expected 1 to 65535" in capsys.readouterr().err


def test_root_has_to_be_allowed(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (folder / "jupyterlab.py").write_text("import sys; sys.exit(3)")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(notebook, "find_spec", lambda name: name)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(["notebook", "--master", "local[2]"]) == 1
    assert "this is root" in capsys.readouterr().err
    assert main(["notebook", "--master", "local[2]", "--allow-root"]) == 3


def test_the_files_go_when_the_server_ends(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    (folder / "jupyterlab.py").write_text(
        "import sys, pathlib; print(sys.argv[1].partition('=')[2]); sys.exit(3)"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(notebook, "find_spec", lambda name: name)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["notebook", "--master", "local[2]"]) == 3
    assert not Path(capfd.readouterr().out.splitlines()[-1]).parent.exists()
