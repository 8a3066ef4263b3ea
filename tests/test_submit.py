"""The command that runs a script on a cluster: what it asks of spark-submit, and what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scripts import script_folder

from sparkdl import session
from sparkdl.__main__ import main
from sparkdl.cli import board, clusters, process, properties
from sparkdl.cli.submit import command as submit
from sparkdl.cli.submit import packing
from sparkdl.cli.submit.job import Job, read_job_file
from sparkdl.exceptions import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, and no settings of this machine."""
    return script_folder(tmp_path, monkeypatch, "print('trained')\n")


def planned(**job: Any) -> submit.Submission:
    return submit.plan(Job(**({"master": "spark://head:7077", "script": "train.py"} | job)), Path("there"))


def confs(submission: submit.Submission) -> dict[str, str]:
    assert "--conf" not in submission.command
    return submission.confs


def test_the_confs_are_those_of_the_kind_of_cluster() -> None:
    found = confs(planned(conf={"spark.executor.memory": "7g"}))
    assert found.items() >= session.recommended().items()
    assert found["spark.executor.memory"] == "7g"
    assert found["spark.dynamicAllocation.enabled"] == "false"
    assert "spark.master" not in found
    assert confs(planned(master="yarn"))["spark.executor.memoryOverhead"] == "4g"


@pytest.mark.parametrize(
    ("master", "kind"),
    [
        ("local", "local"),
        ("local[4]", "local"),
        ("local-cluster[2,1,1024]", "local"),
        ("spark://a:1,b:2", "standalone"),
        ("yarn", "yarn"),
        ("k8s://https://h:443", "kubernetes"),
    ],
)
def test_kinds_of_masters(master: str, kind: str) -> None:
    assert clusters.kind_of(master) == kind
    assert (clusters.CONF / f"{kind}.conf").is_file()


def test_an_unknown_master_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--master 'head:7077': expected local\[N\]"):
        planned(master="head:7077")


def test_what_the_installation_says_wins_over_defaults_but_not_over_what_training_needs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "spark-defaults.conf").write_text(
        "# ours\nspark.executor.memory 9g\nspark.eventLog.dir=hdfs:///logs\nspark.shuffle.compress: true\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    found = confs(planned())
    assert found["spark.executor.memory"] == "9g"
    assert found["spark.shuffle.compress"] == "false"
    # spark-submit reads either its own defaults or a file that is named, so they are in that one.
    assert found["spark.eventLog.dir"] == "hdfs:///logs"
    assert confs(planned(conf={"spark.executor.memory": "7g"}))["spark.executor.memory"] == "7g"


def test_archives_modules_and_interpreters_of_the_installation_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "spark-defaults.conf").write_text(
        "spark.archives hdfs:///a.zip\nspark.submit.pyFiles lib.zip\nspark.pyspark.python /opt/python\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    found = confs(planned(env="hdfs:///e.tar.gz", modules=True))
    assert found["spark.archives"] == "hdfs:///a.zip,hdfs:///e.tar.gz#environment"
    assert found["spark.submit.pyFiles"] == "lib.zip,there/modules.zip"
    assert confs(planned())["spark.pyspark.python"] == "/opt/python"


def test_the_script_and_its_arguments_come_last() -> None:
    submission = planned(args=("--epochs", "3"), name="a job")
    assert submission.command[-3:] == ("train.py", "--epochs", "3")
    assert submission.command[1:5] == ("--master", "spark://head:7077", "--name", "a job")
    assert submission.shown().endswith("train.py --epochs 3")
    assert "--name 'a job'" in submission.shown()


def test_the_executors_run_the_shipped_interpreter_and_the_driver_its_own(folder: Path) -> None:
    with tarfile.open("environment.tar.gz", "w:gz") as archive:
        archive.add("train.py")
    found = confs(planned(env="environment.tar.gz", conf={"spark.archives": "more.zip#more"}))
    assert found["spark.archives"] == "more.zip#more,environment.tar.gz#environment"
    assert found["spark.pyspark.python"] == "./environment/bin/python"
    assert found["spark.pyspark.driver.python"] == sys.executable
    elsewhere = confs(planned(master="yarn", env="hdfs:///e.tar.gz", deploy_mode="cluster"))
    assert elsewhere["spark.archives"] == "hdfs:///e.tar.gz#environment"
    assert elsewhere["spark.submit.deployMode"] == "cluster"
    assert "spark.pyspark.driver.python" not in elsewhere


def test_without_an_environment_executors_run_this_interpreter(capsys: Any) -> None:
    assert confs(planned())["spark.pyspark.python"] == sys.executable
    assert "must be there on each machine" in capsys.readouterr().err
    assert confs(planned(master="k8s://https://h"))["spark.pyspark.python"] == "python3"


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ("nowhere.tar.gz", "is not there"),
        (".", "is a folder"),
        ("train.py", "Spark unpacks .tar.gz"),
        ("broken.tar.gz", "is not an archive"),
    ],
)
def test_environments_that_cannot_be_shipped(env: str, problem: str) -> None:
    Path("broken.tar.gz").write_text("no")
    with pytest.raises(ConfigError, match=problem) as raised:
        planned(env=env)
    assert raised.value.code == "config-environment"


@pytest.mark.parametrize("env", ["a,b.tar.gz", "a#b.zip", "hdfs:///e.tar.gz#environment"])
def test_environments_whose_names_spark_takes_apart(env: str) -> None:
    if "://" not in env:
        with tarfile.open(env, "w") as archive:
            archive.add("train.py")
    with pytest.raises(ConfigError, match=r"has '[,#]' in its name") as raised:
        planned(env=env)
    assert raised.value.code == "config-environment"
    with pytest.raises(ConfigError, match="has ',' in its name"):
        submit.plan(Job(master="yarn", script="train.py", modules=True), Path("/tmp/a,b"))


def test_local_mode_has_nobody_to_ship_to() -> None:
    with pytest.raises(ConfigError, match="no executor to ship an environment to"):
        planned(master="local[2]", env="e.tar.gz")


def test_packing_makes_an_environment_that_runs_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = bare_environment(folder / "venv")
    jars = next(prefix.glob("lib/python3*/site-packages")) / "pyspark" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark.jar").write_text("large")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    target = packing.packed_path(prefix)
    stale = target.with_name(f"{target.name.split('-')[0]}-0000.tar.gz")
    stale.parent.mkdir(parents=True)
    stale.write_text("old")
    secrets = (".env", "pip.conf", ".git/config", "job.toml", "bin/mine", "notes.py", "lib/key.pem")
    for name in (*secrets, f"{jars.parents[1].relative_to(prefix)}/.pypirc"):
        (prefix / name).parent.mkdir(exist_ok=True)
        (prefix / name).write_text("secret")
    packing.pack(prefix, target)
    assert list(target.parent.iterdir()) == [target]
    assert target.stat().st_mode & 0o777 == 0o600
    assert packing.packed_path(prefix) == target
    with tarfile.open(target) as archive:
        site = jars.parents[1].relative_to(prefix)
        found = {name for name in archive.getnames() if not name.startswith(("bin/python", "lib64"))}
        package = {f"{site}/thing-1.0.dist-info/METADATA", f"{site}/thing.py", "bin/thing"}
        assert found == {"pyvenv.cfg", *package}
        # Python 3.11.4 and later warn of archives that are extracted without a filter.
        trusting = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
        archive.extractall(folder / "moved", **trusting)  # type: ignore[arg-type]
    done = subprocess.run(
        [folder / "moved" / "bin" / "python", "-c", "import sys, thing; print(sys.prefix, thing.there)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(folder / "moved"), "True"]
    package = next(prefix.glob("lib/python3*/site-packages")) / "thing-1.0.dist-info"
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 2.0\n")
    assert packing.packed_path(prefix) != target
    (package / "direct_url.json").write_text('{"dir_info": {"editable": true}, "url": "file:///x"}')
    with pytest.raises(ConfigError, match="thing is installed in editable mode"):
        packing.packed_path(prefix)
    (package / "direct_url.json").unlink()
    (package / "RECORD").unlink()
    with pytest.raises(ConfigError, match=r"thing has no list of files \(RECORD\)"):
        packing.packed_path(prefix)


def test_executors_with_this_environment_fork_workers_that_have_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "spark.python.daemon.module"
    monkeypatch.setattr(packing, "packed_path", lambda prefix: Path("environment.tar.gz"))
    assert confs(planned(pack_env=True))[name] == "sparkdl.daemon"
    assert confs(planned(pack_env=True, conf={name: "pyspark.daemon"}))[name] == "pyspark.daemon"
    assert name not in confs(planned(env="hdfs:///e.tar.gz"))  # which need not have sparkdl
    assert name not in confs(planned())


def test_a_package_that_lists_files_elsewhere_does_not_bring_them(folder: Path) -> None:
    prefix = bare_environment(folder / "venv")
    (folder / "secret").write_text("")
    (record,) = prefix.glob("lib/python3*/site-packages/thing-1.0.dist-info/RECORD")
    record.write_text(f"../../../../secret,,\n{folder}/secret,,\n../../..,,\nthing.py,,\n")
    packing.pack(prefix, folder / "packed.tar.gz")
    with tarfile.open(folder / "packed.tar.gz") as archive:
        names = [name for name in archive.getnames() if "python" not in name or "thing" in name]
    assert [name for name in names if "secret" in name or ".." in name] == []
    assert len([name for name in names if name.endswith("thing.py")]) == 1


def bare_environment(prefix: Path) -> Path:
    """Make a virtual environment with a package of one line."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    site = next(prefix.glob("lib/python3*/site-packages"))
    (site / "thing.py").write_text("there = True\n")
    (prefix / "bin" / "thing").write_text("#!python\n")
    (site / "thing-1.0.dist-info").mkdir()
    (site / "thing-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n"
    )
    listed = ("thing.py", "../../../bin/thing", "pyspark/jars/spark.jar", "thing-1.0.dist-info/METADATA")
    (site / "thing-1.0.dist-info" / "RECORD").write_text("".join(f"{name},,\n" for name in listed))
    return prefix


def test_only_environments_are_packed(folder: Path) -> None:
    with pytest.raises(ConfigError, match="is not a virtual environment"):
        packing.packed_path(folder)
    (folder / "conda-meta").mkdir()
    with pytest.raises(ConfigError, match="conda pack -o environment.tar.gz"):
        packing.packed_path(folder)


def test_modules_travel_without_what_is_not_source(folder: Path) -> None:
    for name in (
        "helpers.py",
        "net/__init__.py",
        "net/layers.py",
        ".git/x.py",
        "venv/pyvenv.cfg",
        "venv/y.py",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    submission = planned(modules=True)
    assert confs(submission)["spark.submit.pyFiles"] == "there/modules.zip"
    packing.zip_modules(folder, folder / "m.zip")
    with zipfile.ZipFile(folder / "m.zip") as archive:
        assert archive.namelist() == ["helpers.py", "net/__init__.py", "net/layers.py", "train.py"]


def test_modules_with_odd_times_and_links(folder: Path) -> None:
    (folder / "net").mkdir()
    (folder / "net" / "old.py").write_text("")
    os.utime(folder / "net" / "old.py", (0, 0))
    (folder / "net" / "loop").symlink_to(folder)
    (folder / "self").symlink_to(".")
    (folder / "nowhere.py").symlink_to("gone")
    (folder / "folder.py").mkdir()
    (folder / "common").symlink_to("net")
    os.mkfifo(folder / "pipe.py")
    packing.zip_modules(folder, folder / "m.zip")
    with zipfile.ZipFile(folder / "m.zip") as archive:
        assert archive.namelist() == ["common/old.py", "net/old.py", "train.py"]


def test_modules_that_cannot_be_read_are_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", "train.py")

    monkeypatch.setattr(zipfile.ZipFile, "write", refuse)
    with pytest.raises(ConfigError, match=r"--modules: .* cannot be packed: .*train\.py"):
        packing.zip_modules(folder, folder / "m.zip")


# -- the job file ---------------------------------------------------------------------------------

JOB = """
master = "spark://head:7077"
script = "train.py"
args = ["--epochs", "5"]
log-level = "info"
pack-env = true

[conf]
"spark.speculation" = true
spark.executor.cores = 4
spark.executor.memory = "4g"
"""


def job(*arguments: str) -> Job:
    parsed: list[Any] = []

    class Subparsers:
        def add_parser(self, name: str, **options: Any) -> Any:
            import argparse

            parsed.append(argparse.ArgumentParser(**{k: v for k, v in options.items() if k != "help"}))
            return parsed[0]

    submit.register(Subparsers())
    return submit.job_of(parsed[0].parse_args(list(arguments)))


def test_the_log_of_a_driver_in_the_cluster_is_as_rich_as_is_wanted(folder: Path) -> None:
    """Its variables are not those of spark-submit."""
    for master, variables in (("yarn", "spark.yarn.appMasterEnv"), ("k8s://h", "spark.kubernetes.driverEnv")):
        there = planned(master=master, deploy_mode="cluster", log_level="debug")
        assert there.confs[f"{variables}.SPARKDL_LOG"] == "DEBUG"
        for other in ({"log_level": "debug"}, {"deploy_mode": "cluster"}):
            assert f"{variables}.SPARKDL_LOG" not in planned(master=master, **other).confs


@pytest.mark.parametrize("option", ["retry-delay", "retry-folder"])
def test_what_is_about_retries_is_refused_without(folder: Path, option: str) -> None:
    given = [f"--{option}", "3", "--master", "yarn", "train.py"]
    with pytest.raises(ConfigError, match=f"^{option} is given without retries"):
        job(*given)
    for retries in ("0", "2"):  # a job file has them, and this time there are to be none
        assert job("--retries", retries, *given).retries == int(retries)


def test_a_job_file_says_what_the_command_line_does(folder: Path) -> None:
    (folder / "job.toml").write_text(JOB)
    found = job("--conf-file", "job.toml")
    assert found.conf == {
        "spark.speculation": "true",
        "spark.executor.cores": "4",
        "spark.executor.memory": "4g",
    }
    assert (found.args, found.log_level, found.pack_env) == (("--epochs", "5"), "info", True)


def test_the_guide_shows_a_job_file(folder: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "clusters.md").read_text()
    (folder / "job.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    found = job("--conf-file", "job.toml")
    assert (found.name, found.modules, found.conf["spark.executor.cores"]) == ("churn", True, "4")


def test_the_command_line_wins(folder: Path) -> None:
    (folder / "job.toml").write_text(JOB)
    Path("other.py").write_text("")
    found = job(
        *("--conf-file", "job.toml", "--master", "local[2]", "--env", "e.tar.gz"),
        *("--conf", "spark.executor.memory=1g", "other.py", "--conf", "x"),
    )
    assert (found.master, found.script, found.args) == ("local[2]", "other.py", ("--conf", "x"))
    assert (found.env, found.pack_env) == ("e.tar.gz", False)
    assert found.conf["spark.executor.memory"] == "1g"
    assert job("--conf-file", "job.toml", "--", "--lr", "1").args == ("--lr", "1")
    assert not job("--conf-file", "job.toml", "--no-pack-env").pack_env


def test_paths_are_relative_to_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "job.toml").write_text(JOB)
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    assert read_job_file(Path("../job.toml"))["script"] == "../train.py"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("master = spark", "is not TOML"),
        (
            "[conf]\nspark.speculation = true\nspark.speculation.multiplier = 3",
            "needs quotes around its name",
        ),
        ("maser = 'x'", "'maser' is not known; expected master, script"),
        ("args = '--epochs 3'", "expected a list of strings"),
        ("args = [3]", "expected a list of strings"),
        ("pack-env = 'yes'", "expected true or false"),
        ("[conf]\nspark.jars = ['a']", "conf spark.jars"),
        (
            "log-level = 'loud'\nmaster = 'yarn'\nscript = 'train.py'",
            "log-level 'loud': expected one of DEBUG",
        ),
        ("env = 'a.zip'\npack-env = true\nmaster = 'yarn'\nscript = 'train.py'", "env and pack-env are both"),
        ("deploy-mode = 'far'\nmaster = 'yarn'\nscript = 'train.py'", "expected client or cluster"),
        ("master = 'yarn'", "no script: give it after the options"),
        ("script = 'train.py'", "no master: give --master"),
        ("script = 'nothing.py'\nmaster = 'yarn'", "'nothing.py' is not there"),
    ],
)
def test_mistakes_in_a_job_file_are_named(folder: Path, text: str, problem: str) -> None:
    (folder / "job.toml").write_text(text)
    with pytest.raises(ConfigError, match=problem) as raised:
        job("--conf-file", "job.toml")
    assert raised.value.code == "config-command"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_job_file_in_another_encoding_is_an_error(folder: Path, encoding: str) -> None:
    (folder / "job.toml").write_text("master = 'yarn'\nname = 'é'\n", encoding=encoding)
    with pytest.raises(ConfigError, match=r"job.toml, line \d: byte 0x(e9|ff) is not UTF-8") as raised:
        read_job_file(folder / "job.toml")
    assert raised.value.code == "config-command"
    (folder / "job.toml").write_text("name = 'é'\n", encoding="utf-8-sig")
    assert read_job_file(folder / "job.toml") == {"name": "é"}


def test_a_job_file_that_is_not_there_is_an_error_without_traceback(capsys: Any) -> None:
    assert main(["submit", "--conf-file", "none.toml"]) == 1
    assert "job file none.toml cannot be read: No such file" in capsys.readouterr().err


# -- running ----------------------------------------------------------------------------------------


def fake_spark(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put a shell script in the place of spark-submit."""
    file = folder / "spark" / "bin" / "spark-submit"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(folder / "spark"))


def test_output_streams_and_the_exit_status_is_the_jobs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    fake_spark(folder, monkeypatch, 'echo "log $SPARKDL_LOG"; echo "$SPARK_SUBMIT_OPTS"; exit 7')
    assert main(["submit", "--master", "local[2]", "--log-level", "info", "train.py"]) == 7
    out = capfd.readouterr().out
    assert "log INFO" in out
    assert "log4j2.properties" in out


def test_a_job_that_was_killed_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_spark(folder, monkeypatch, "kill -9 $$")
    assert main(["submit", "--master", "local[2]", "train.py"]) == 128 + signal.SIGKILL


def test_signals_reach_the_job_and_ctrl_c_does_not_end_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The parent gets both; the job hears of SIGTERM only, since a terminal sends it Ctrl-C itself.
    fake_spark(folder, monkeypatch, "trap 'exit 3' TERM; kill -INT $PPID; kill -TERM $PPID; sleep 30 & wait")
    assert main(["submit", "--master", "local[2]", "train.py"]) == 3


def test_ctrl_c_is_for_the_drivers_python_alone_and_a_third_ends_spark(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    ignored = "grep SigIgn /proc/$$/status"
    fake_spark(folder, monkeypatch, f"trap 'exit 3' TERM; {ignored}; kill -INT $PPID; kill -INT $$; echo on")
    assert main(["submit", "--master", "local[2]", "train.py"]) == 0
    out = capfd.readouterr().out
    assert int(out.split()[1], 16) & 1 << signal.SIGINT - 1
    assert out.endswith("on\n")
    (folder / "spark" / "bin" / "spark-submit").write_text(
        f"#!/bin/sh\ntrap 'exit 3' TERM\n{PRESSES}\nexit 4\n"
    )
    assert main(["submit", "--master", "local[2]", "train.py"]) == 3


PRESSES = "; ".join(["kill -INT $PPID; sleep 0.3"] * 3)


def test_a_command_that_hears_ctrl_c_itself_is_not_ended_by_a_third() -> None:
    """Jupyter asks at each whether to end."""
    with process.forwarding() as child:
        assert child.run(["sh", "-c", f"trap 'exit 3' TERM; {PRESSES}; exit 4"], {}) == 4


def test_interrupts_of_several_fits_are_no_third_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_IN_A_ROW_S", 0.1)
    with process.forwarding() as child:
        command = ["sh", "-c", f"trap 'exit 3' TERM; {PRESSES}; exit 4"]
        assert child.run(command, {}, ignores_interrupts=True) == 4


def test_a_terminal_that_closes_leaves_no_confs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    fake_spark(folder, monkeypatch, "trap 'exit 3' HUP; ls -d sparkdl-*/*; kill -HUP $PPID; sleep 30 & wait")
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert main(["submit", "--master", "local[2]", "train.py"]) == 3
    finally:
        signal.signal(signal.SIGHUP, before)
    assert "spark.properties" in capfd.readouterr().out
    assert not list(folder.glob("sparkdl-*"))


def test_a_dry_run_prints_a_command_and_writes_nothing(folder: Path, capsys: Any) -> None:
    before = sorted(folder.iterdir())
    assert main(["submit", "--master", "local[2]", "--modules", "--dry-run", "train.py", "--x"]) == 0
    out = capsys.readouterr().out
    assert "--master 'local[2]' \\\n" in out
    assert out.endswith("train.py --x\n")
    assert sorted(folder.iterdir()) == before


# -- secrets ------------------------------------------------------------------------------------------

SECRET_JOB = """
master = "local[2]"
script = "train.py"
name = "ftp://me:wJalr@host/x"
args = ["--api-token", "wJalr", "--lr", "0.1"]

[conf]
"spark.hadoop.fs.s3a.secret.key" = "wJalr/X=+ y\\\\ é\U0001f600"
spark.driver.extraJavaOptions = "-Dpassword=wJalr"
"""


def test_no_secret_is_on_the_command_line(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    (folder / "job.toml").write_text(SECRET_JOB.replace('args = ["--api-token", "wJalr", "--lr", "0.1"]', ""))
    (folder / "spark-defaults.conf").write_text("spark.hadoop.fs.s3a.access.key wJalr-site\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    fake_spark(
        folder,
        monkeypatch,
        'umask 0; while [ "$1" != --properties-file ]; do shift; done; echo "$2"; stat -c %a "$2"; cat "$2"; '
        'cat /proc/$$/cmdline | tr "\\0" " "',
    )
    before = os.umask(0)
    try:
        assert main(["submit", "--conf-file", "job.toml"]) == 0
    finally:
        os.umask(before)
    file, mode, *lines = capfd.readouterr().out.splitlines()
    assert mode == "600"
    assert not Path(file).exists()
    assert not Path(file).parent.exists()
    assert "spark.hadoop.fs.s3a.access.key=wJalr-site" in lines
    (secret,) = [line for line in lines if line.startswith("spark.hadoop.fs.s3a.secret")]
    assert secret == r"spark.hadoop.fs.s3a.secret.key=wJalr/X\=+\ y\\\ \u00e9\ud83d\ude00"
    assert "wJalr/" not in lines[-1]


def test_a_dry_run_shows_no_secret(folder: Path, capsys: Any) -> None:
    (folder / "job.toml").write_text(SECRET_JOB)
    assert main(["submit", "--conf-file", "job.toml", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "wJalr" not in out
    assert "#   spark.hadoop.fs.s3a.secret.key = *********(redacted)\n" in out
    assert "#   spark.shuffle.compress = false\n" in out
    assert "--lr 0.1" in out
    assert "--name 'ftp://***@host/x'" in out


@pytest.mark.parametrize(
    "text",
    [
        'conf = "wJalr"',
        '[conf]\n"spark.password" = ["wJalr"]',
        'args = "--password=wJalr"',
        "args = [['wJalr']]",
    ],
)
def test_mistakes_in_a_job_file_are_named_without_values(folder: Path, text: str) -> None:
    (folder / "job.toml").write_text(text)
    with pytest.raises(ConfigError, match="expected a ") as raised:
        read_job_file(folder / "job.toml")
    assert "wJalr" not in str(raised.value)


def test_properties_are_those_of_java(folder: Path) -> None:
    text = (
        "a b\n  c=d\n e : f \n!x\n# y\n\ng\n h\\ i\\=\\:j = k\\\n   l # m\\u00e9\\n\r\n"
        "n\\\\\no=\\\\\\\n\np = \\q\\ud83d\\ude00\\"
    )
    (folder / "x").write_text(text, newline="")
    assert properties.read(folder / "x") == {
        "a": "b",
        "c": "d",
        "e": "f",
        "g": "",
        "h i=:j": "kl # mé\n",
        "n\\": "",
        "o": "\\",
        "p": "q\U0001f600",
    }


@given(st.dictionaries(st.text(min_size=1), st.text().map(lambda text: text.strip(" \t")), max_size=3))
def test_properties_are_read_as_they_were_written(confs: dict[str, str]) -> None:
    confs = {name: value for name, value in confs.items() if name.isprintable()}
    with tempfile.TemporaryDirectory() as name:
        properties.write(Path(name, "x"), confs)
        assert properties.read(Path(name, "x")) == confs


def test_java_reads_what_was_written(spark: Any, folder: Path) -> None:
    odd = {"a =:#!\\ é": " !#=:\\ \t\r\n\f\x0b\x7f é\U0001f600 ", "b": "", "c": "\u2028"}
    properties.write(folder / "x", odd)
    found = spark._jvm.java.util.Properties()
    found.load(spark._jvm.java.io.FileReader(str(folder / "x")))
    assert {name: found.getProperty(name) for name in odd} == odd
    assert found.size() == len(odd)


def test_tensorboard_runs_as_long_as_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    started: list[Any] = []
    real = subprocess.Popen

    def record(command: list[str], **options: Any) -> Any:
        started.append(real([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        started.append(command)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", record)
    with board.board("runs") as address:
        process, command = started
        assert process.poll() is None
        assert command[-4:] == ["--host", "localhost", "--port", address.strip("/").rsplit(":", 1)[1]]
    assert process.poll() is not None


def test_a_port_in_use_is_not_taken() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        assert board.free_port(taken.getsockname()[1]) != taken.getsockname()[1]


def test_tensorboard_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'sparkdl\[tensorboard\]'"), board.board("runs"):
        pass
