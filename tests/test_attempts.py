"""Jobs whose drivers die: what drivers note, which ends are worth another one, and what that one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.runs import FakeRun
from support.scripts import script_folder
from torch import nn

from sparkdl import Dataset, Trainer, attempts
from sparkdl.__main__ import main
from sparkdl.attempts import VARIABLE, CheckpointPlace, Note, Notes
from sparkdl.cli.runs.command import runs
from sparkdl.cli.submit import command as submit
from sparkdl.cli.submit import retries
from sparkdl.cli.submit.job import Job
from sparkdl.cli.submit.retries import delay, judge, supervise
from sparkdl.exceptions import ConfigError
from sparkdl.online import OnlineTrainer
from sparkdl.summary import JsonLines
from sparkdl.train import Checkpoint, EveryIterations, Hook, MaxIteration

BEGUN = Note(pid=7)
ENDED = Note(pid=7, ended=True, failed="ValueError: no")
LOST = Note(pid=7, ended=True, failed="Py4JError: gone", lost="Py4JError: gone")


@pytest.fixture
def spark(in_process: Any) -> Any:
    return in_process


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], attempts.Attempt]]:
    """Make this process the driver of an attempt."""
    folder = tmp_path / "notes"
    folder.mkdir()
    monkeypatch.setenv(VARIABLE, str(folder))

    def begin(number: int) -> attempts.Attempt:
        Notes(str(folder)).write(number, Note())
        attempts.current.cache_clear()
        attempt = attempts.current()
        assert attempt is not None
        return attempt

    yield begin
    attempts.current.cache_clear()


# -- the rule ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "note", "again", "why"),
    [
        (0, ENDED, False, "done"),
        (0, Note(), False, "done"),
        (137, BEGUN, True, "SIGKILL killed the driver"),
        (137, Note(), True, "SIGKILL killed the driver"),
        (143, BEGUN, True, "SIGTERM"),
        (134, BEGUN, True, "SIGABRT"),
        (130, BEGUN, False, "interrupted"),
        (1, LOST, True, "lost its cluster: Py4JError: gone"),
        (1, ENDED, False, "the script ended with ValueError: no"),
        (3, Note(pid=7, ended=True), False, "exit status 3"),
        (137, Note(pid=7, ended=True), False, "exit status 137"),  # sys.exit(137)
        (50, BEGUN, True, "vanished"),
        (1, Note(), False, "before the script imported sparkdl"),
        (200, Note(), False, "before the script"),
    ],
)
def test_which_ends_are_worth_another_driver(status: int, note: Note, again: bool, why: str) -> None:
    verdict = judge(status, note)
    assert verdict.again is again
    assert why in verdict.why


@pytest.mark.parametrize(
    ("status", "note", "again"),
    [
        (1, BEGUN, True),
        (0, BEGUN, True),
        (1, ENDED, False),
        (1, LOST, True),
        (137, BEGUN, False),
        (0, ENDED, False),
    ],
)
def test_in_cluster_mode_the_note_tells_and_not_the_client(status: int, note: Note, again: bool) -> None:
    assert judge(status, note, remote=True).again is again


@given(st.integers(0, 10_000), st.floats(0, 1e6))
def test_delays_double_up_to_a_bound(failures: int, first: float) -> None:
    assert delay(first, failures) <= min(delay(first, failures + 1), retries.LONGEST_DELAY)
    assert delay(first, 1) == min(first, retries.LONGEST_DELAY)


class Drivers:
    """Plays drivers: each a status, and the iteration of the newest checkpoint at its end."""

    def __init__(self, folder: Path, *ends: tuple[int, int], ended: bool = False) -> None:
        self.notes, self.ends, self.pauses, self.ended = Notes(str(folder)), list(ends), list[float](), ended
        self.stop = False

    def attempt(self) -> int:
        (number,) = self.notes.numbers()[-1:]
        status, newest = self.ends.pop(0)
        places = (("runs/x", CheckpointPlace(newest)),) if newest else ()
        self.notes.write(number, Note(pid=1, places=places, ended=self.ended))
        return status

    def supervise(self, retries: int) -> int:
        return supervise(
            self.attempt,
            self.notes,
            retries=retries,
            first_delay=10,
            pause=self.pauses.append,
            stopped=lambda: self.stop,
            remote=False,
        )


def test_failures_in_a_row_are_counted_and_wait_longer(tmp_path: Path, capsys: Any) -> None:
    drivers = Drivers(tmp_path, *[(137, 0)] * 4)
    assert drivers.supervise(retries=3) == 137
    assert drivers.pauses == [10, 20, 40]
    err = capsys.readouterr().err
    assert "attempt 1: SIGKILL killed the driver; reached: no checkpoint; attempt 2 begins in 10 s" in err
    assert "4 failures in a row without a new checkpoint, --retries 3" in err


def test_progress_sets_the_count_back(tmp_path: Path, capsys: Any) -> None:
    # New checkpoints at 5, 9 and 12; the same at 9 twice more is none, and neither is an older one.
    drivers = Drivers(tmp_path, (137, 5), (137, 0), (137, 9), (137, 9), (137, 3), (137, 12), (0, 20))
    assert drivers.supervise(retries=2) == 0
    assert drivers.pauses == [10, 10, 10, 10, 20, 10]
    assert "reached: iteration 9 in runs/x" in capsys.readouterr().err


def test_an_error_of_the_script_and_a_signal_for_the_command_are_the_end(tmp_path: Path) -> None:
    failing = Drivers(tmp_path, (1, 5), ended=True)
    assert failing.supervise(retries=5) == 1
    assert failing.pauses == []
    stopped = Drivers(tmp_path, (143, 5))
    stopped.stop = True
    assert stopped.supervise(retries=5) == 143
    assert stopped.pauses == []


# -- notes ------------------------------------------------------------------------------------------


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    note = Note(7, (("s3://b/é", CheckpointPlace(4, True)), ("x", CheckpointPlace())), True, "lost", "failed")
    for folder in (str(tmp_path), "memory://notes"):
        notes = Notes(folder)
        notes.write(11, note)
        notes.write(2, Note())
        assert notes.numbers() == [2, 11]
        assert (notes.read(11), notes.read(3)) == (note, Note())
    assert (tmp_path / "attempt-11.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff", b"[]", b"[" * 100_000, b'{"pid": -1, "places": [], "lost": 3}', b'{"places": {"a": 1}}'],
)
def test_a_note_that_is_none_says_nothing(text: bytes) -> None:
    assert Note.parse(text) == Note()


DRIVER = """
import sys
import sparkdl
from sparkdl import attempts

{body}
"""


@pytest.mark.parametrize(
    ("body", "status", "note"),
    [
        ("raise ValueError('no\\nmore')", 1, Note(ended=True, failed="ValueError: no")),
        ("sys.exit(3)", 3, Note(ended=True)),
        ("import os; os.kill(os.getpid(), 9)", -9, Note()),
        (
            "import subprocess; subprocess.run([sys.executable, '-c', 'import sparkdl; 1 / 0'])",
            0,
            Note(ended=True),
        ),
        (
            "from sparkdl.exceptions import ConfigError\n"
            "try:\n    raise ConfigError('none came', code='config-executors')\n"
            "except ConfigError as error:\n    raise RuntimeError('x') from error",
            1,
            Note(ended=True, failed="RuntimeError: x", lost="RuntimeError: x"),
        ),
        (
            # A SparkContext whose JVM is gone, and a script that closes its session in any case.
            "import pyspark\n"
            "pyspark.SparkContext._active_spark_context = object()\n"
            "try:\n    raise OSError('gone')\n"
            "except OSError as error:\n    attempts.current().look(error)\n"
            "    pyspark.SparkContext._active_spark_context = None\n    raise RuntimeError('x') from error",
            1,
            Note(ended=True, failed="RuntimeError: x", lost="RuntimeError: x"),
        ),
    ],
)
def test_what_a_driver_notes_of_its_end(tmp_path: Path, body: str, status: int, note: Note) -> None:
    notes = Notes(str(tmp_path))
    notes.write(1, Note())
    script = DRIVER.format(body=body)
    environment = os.environ | {VARIABLE: str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.DEVNULL)
    assert process.wait() == status
    found = notes.read(1)
    assert found.pid == process.pid
    assert found == Note(process.pid, (), note.ended, note.lost, note.failed)


# -- what the next driver does ------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL: no checkpoint is written at the end."""


class DiesAfter(Hook):
    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_iteration_end(self, run: Any) -> None:
        if run.state.iteration == self.iteration:
            raise Killed


def fit(folder: Path, dies: int | None = None, **options: Any) -> Any:
    """The script: it knows nothing of attempts."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 3)).astype("float32")
    torch.manual_seed(0)
    hooks: list[Hook] = [
        JsonLines(folder / "history.jsonl"),
        Checkpoint(folder / "checkpoints", every=EveryIterations(2), background=False, at_end=dies is None),
    ]
    with Dataset.from_numpy(x, x.sum(1, keepdims=True), num_partitions=2) as data:
        trainer = Trainer(
            nn.Linear(3, 1),
            loss=nn.MSELoss(),
            optimizer=partial(torch.optim.Adam, lr=0.05),
            batch_size=8,
            end_when=MaxIteration(9),
            progress=False,
            hooks=hooks if dies is None else [*hooks, DiesAfter(dies)],
        )
        return trainer.fit(data, **options)


def test_a_script_goes_on_without_a_change_and_ends_with_the_same_bits(
    spark: Any, tmp_path: Path, begin: Callable[[int], attempts.Attempt]
) -> None:
    attempts.current.cache_clear()
    begin(1)
    undisturbed = fit(tmp_path / "a").module.state_dict()
    for number, dies in ((1, 3), (2, 7)):
        begin(number)
        with pytest.raises(Killed):
            fit(tmp_path / "b", dies)
    attempt = begin(3)
    assert attempt.earlier(tmp_path / "b" / "checkpoints") == CheckpointPlace(6)
    result = fit(tmp_path / "b")
    assert [row["iteration"] for row in result.history] == list(range(1, 10))
    for name, value in result.module.state_dict().items():
        assert torch.equal(value, undisturbed[name])
    (found,) = runs(str(tmp_path / "b"))
    assert (found.iterations, found.attempt, found.state) == (9, 3, "finished")
    # Were the driver to die once more, this run would not begin again.
    again = begin(4)
    assert again.earlier(tmp_path / "b" / "checkpoints") == CheckpointPlace(9, True)
    assert len(fit(tmp_path / "b").history) == 9


def test_without_retries_a_script_is_told_of_older_checkpoints(spark: Any, tmp_path: Path) -> None:
    fit(tmp_path)
    with pytest.raises(ConfigError, match="has a checkpoint of iteration 9 already"):
        fit(tmp_path)


def test_a_first_driver_does_not_go_on_with_the_checkpoints_of_another_job(
    spark: Any, tmp_path: Path, begin: Callable[[int], attempts.Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.delenv(VARIABLE)
        attempts.current.cache_clear()
        fit(tmp_path)
    begin(1)
    begin(2)
    with pytest.raises(ConfigError, match="has a checkpoint of iteration 9 already"):
        fit(tmp_path)


def test_new_rows_are_new_once(tmp_path: Path, begin: Callable[[int], attempts.Attempt]) -> None:
    from sparkdl.train.hooks.checkpoint import of_attempt

    hook = Checkpoint(tmp_path / "c")
    first = begin(1)
    assert of_attempt("old", "new", [hook]) == ("old", "new")
    first.begun(hook.path)
    assert of_attempt("old", "new", [hook]) == ("old", "new")
    first.written(hook.path, 4)
    second = begin(2)
    assert of_attempt("old", "new", [hook]) == (True, "same")  # the run that was cut off
    second.begun(hook.path)
    assert of_attempt("old", "new", [hook]) == (True, "new")  # the one after it
    second.written(hook.path, 6)
    second.finished(hook.path)
    begin(3)
    assert of_attempt(False, "new", [hook]) == (True, "new")
    assert of_attempt(False, "same", []) == (False, "same")


def learn(folder: Path, first: int, dies: int | None = None) -> dict[str, torch.Tensor]:
    """A script that learns the batches of a stream."""
    torch.manual_seed(0)
    hooks = [] if dies is None else [DiesAfter(dies)]
    adam = partial(torch.optim.Adam, lr=0.05)
    model = nn.Linear(3, 1)
    trainer = Trainer(model, loss=nn.MSELoss(), optimizer=adam, batch_size=8, progress=False, hooks=hooks)
    online = OnlineTrainer(trainer, folder)
    for number in range(first, 3):
        x = np.random.default_rng(number).normal(size=(32, 3)).astype("float32")
        with Dataset.from_numpy(x, x.sum(1, keepdims=True), num_partitions=2) as data:
            online.learn(data, number)
    return online.module.state_dict()


def test_a_stream_goes_on_with_other_rows(
    spark: Any, tmp_path: Path, begin: Callable[[int], attempts.Attempt]
) -> None:
    begin(1)
    undisturbed = learn(tmp_path / "a", 0)
    begin(1)
    with pytest.raises(Killed):
        learn(tmp_path / "b", 0, dies=6)  # in the second batch of four iterations
    begin(2)
    for name, value in learn(tmp_path / "b", 1).items():
        assert torch.equal(value, undisturbed[name])


def test_the_log_names_the_attempt(begin: Callable[[int], attempts.Attempt], caplog: Any) -> None:
    from sparkdl.summary import LogLine

    begin(2)
    with caplog.at_level("INFO", "sparkdl"):
        FakeRun().train(LogLine(), iterations=1)
    assert "digits: attempt 2 begins after iteration 0" in caplog.text


# -- the command --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return script_folder(tmp_path, monkeypatch)


def fake_spark(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put a Python program in the place of spark-submit: it has the confs, and plays the driver."""
    file = folder / "spark" / "bin" / "spark-submit"
    file.parent.mkdir(parents=True)
    prelude = f"""
    import os, sys, time, signal
    from pathlib import Path
    from sparkdl.attempts import Note, Notes, CheckpointPlace
    from sparkdl.cli import properties
    confs = properties.read(Path(sys.argv[sys.argv.index("--properties-file") + 1]))
    where = os.environ.get("{VARIABLE}") or next(v for k, v in confs.items() if k.endswith("{VARIABLE}"))
    notes = Notes(where)
    number = notes.numbers()[-1]
    print("attempt", number, flush=True)
    """
    file.write_text(f"#!{sys.executable}\n" + textwrap.dedent(prelude) + textwrap.dedent(body))
    file.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(folder / "spark"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def test_a_driver_that_is_killed_is_started_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    body = """
    if number < 3:
        notes.write(number, Note(1, (("c", CheckpointPlace(number)),)))
        left = os.fork()
        if left == 0:
            time.sleep(60)  # something that it leaves behind, which would hold files
        Path(f"left-{number}").write_text(str(left))
        os.kill(os.getpid(), 9)
    assert sys.stdin.read() == ""
    """
    fake_spark(folder, monkeypatch, body)
    command = ["submit", "--master", "local[2]", "--retries", "1", "--retry-delay", "0", "train.py"]
    assert main(command) == 0
    found = capfd.readouterr()
    assert found.out.split() == ["attempt", "1", "attempt", "2", "attempt", "3"]
    assert "reached: iteration 2 in c; attempt 3 begins in 0 s" in found.err
    for number in (1, 2):
        assert _is_dead(int((folder / f"left-{number}").read_text()))


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_ctrl_c_is_no_reason_for_a_retry(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    # It comes to the command, which passes it on, for the job is in a process group of its own.
    body = """
    notes.write(number, Note(1))
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(30)
    """
    fake_spark(folder, monkeypatch, body)
    assert main(["submit", "--master", "local[2]", "--retries", "5", "train.py"]) == 130
    assert capfd.readouterr().out.split() == ["attempt", "1"]


@pytest.mark.whole
def test_ctrl_c_between_two_attempts(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    body = """
    if os.fork() == 0:
        os.setsid()  # outlives the group
        time.sleep(0.7)
        os.kill(int(Path("command").read_text()), signal.SIGINT)
        os._exit(0)
    os.kill(os.getpid(), 9)
    """
    Path("command").write_text(str(os.getpid()))
    fake_spark(folder, monkeypatch, body)
    assert main(["submit", "--master", "local[2]", "--retries", "5", "train.py"]) == 137
    assert "attempt 2 begins in 10 s" in capfd.readouterr().err


@pytest.mark.parametrize("master", ["yarn", "k8s://https://h:443"])
def test_in_cluster_mode_the_driver_is_told_by_confs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, master: str
) -> None:
    body = """
    assert "SPARKDL_ATTEMPTS" not in os.environ
    if number == 1:
        notes.write(1, Note(1))
        sys.exit(1)
    notes.write(number, Note(1, ended=True, failed="ValueError: no"))
    sys.exit(1)
    """
    fake_spark(folder, monkeypatch, body)
    command = [
        "submit",
        "--master",
        master,
        "--deploy-mode",
        "cluster",
        "--retries",
        "5",
        "--retry-delay",
        "0",
    ]
    assert main([*command, "--retry-folder", f"file://{folder}/notes", "train.py"]) == 1
    found = capfd.readouterr()
    assert found.out.split() == ["attempt", "1", "attempt", "2"]
    assert "the driver vanished" in found.err
    assert "the script ended with ValueError: no; no retry" in found.err


def planned(**job: Any) -> submit.Submission:
    given = {"master": "spark://head:7077", "script": "train.py", "retries": 5}
    return submit.plan(Job(**(given | job)), Path("there"))


def test_command_lines_by_master(folder: Path) -> None:
    for master in ("spark://head:7077", "yarn", "k8s://https://h:443", "local[2]"):
        here = planned(master=master)
        assert here.environment[VARIABLE].startswith("there/attempts/")
        assert here.command[:3] == (*here.command[:1], "--master", master)
        assert (here.confs.get(f"spark.executorEnv.{VARIABLE}") == "") is master.startswith("local")
    there = planned(master="yarn", deploy_mode="cluster", retry_folder="s3://b/notes")
    assert there.confs[f"spark.yarn.appMasterEnv.{VARIABLE}"].startswith("s3://b/notes/")
    assert there.confs["spark.yarn.maxAppAttempts"] == "1"
    assert VARIABLE not in there.environment
    pod = planned(master="k8s://https://h:443", deploy_mode="cluster", retry_folder="s3://b/notes")
    assert pod.confs[f"spark.kubernetes.driverEnv.{VARIABLE}"].startswith("s3://b/notes/")
    assert VARIABLE not in "".join(planned(retries=0).confs) + "".join(planned(retries=0).environment)


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ({"retries": -1}, "retries -1: expected a whole number of at least 0"),
        ({"retry_delay": float("nan")}, "retry-delay nan: expected seconds"),
        ({"deploy_mode": "cluster"}, "no Python driver in cluster mode with --master spark://head"),
        ({"deploy_mode": "cluster", "master": "yarn"}, "retry-folder is None; expected the URL"),
        (
            {
                "deploy_mode": "cluster",
                "master": "yarn",
                "retry_folder": "s3://b/n",
                "conf": {"spark.yarn.submit.waitAppCompletion": "false"},
            },
            "waitAppCompletion is 'false'; expected 'true'",
        ),
    ],
)
def test_jobs_that_cannot_be_retried(folder: Path, job: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        planned(**job)


def test_signals_are_named() -> None:
    assert judge(128 + signal.SIGSEGV, BEGUN).why == "SIGSEGV killed the driver"
