"""Access to a Spark Connect session: whole fits, without a server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import torch
from support.no_jvm import no_jvm
from support.no_server import Frame, Session, files_in, no_server
from support.reference import threads
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl._spark.session import is_deterministic
from sparkdl.access import access_to, models_in
from sparkdl.access.connect.rows import ConnectFrames
from sparkdl.exceptions import ConfigError, TaskError
from sparkdl.nn import EmbeddingVariable
from sparkdl.optim import LAMB, ClipByNorm
from sparkdl.session import Executors
from sparkdl.train import Hook, MaxIteration, Run

ROWS = 24
ADAM = partial(torch.optim.Adam, lr=1e-2)
LAZY = {"table*": partial(torch.optim.SparseAdam, lr=1e-2), "*": ADAM}
CASES: dict[str, dict[str, Any]] = {
    "replicated": {"exchange": "replicated"},
    "sharded": {"exchange": "sharded", "gradient_codec": "int8"},
    "sums": {"exchange": "sharded", "optimizer": partial(LAMB, lr=1e-2), "clip": ClipByNorm(0.1)},
    "local steps": {"local_steps": 2},
    "embedding variables": {"module": "keyed", "optimizer": LAZY},
    "embedding variables, sharded": {"module": "keyed", "optimizer": LAZY, "exchange": "sharded"},
}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with threads(1), no_server(tmp_path) as made:
        yield made


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


class Keyed(nn.Module):
    """Looks rows up by ids that follow from the inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = EmbeddingVariable(4, seed=1), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.table((x[:, 0] * 10).long()))


def rows(spark: Any, partitions: int) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 4)).astype(np.float32)
    return Dataset.from_numpy(x, rng.integers(0, 3, ROWS), spark=spark, num_partitions=partitions)


def trainer(**options: Any) -> Trainer:
    module = Keyed() if options.pop("module", "") == "keyed" else net()
    made = {"loss": nn.CrossEntropyLoss(), "optimizer": ADAM, "batch_size": 8, "progress": False}
    return Trainer(module, **{**made, "end_when": MaxIteration(7), **options})


def bits(module: nn.Module) -> list[bytes]:
    return [value.numpy().tobytes() for value in module.state_dict().values()]


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
def test_stages_end_with_the_bits_of_a_classic_session(
    options: dict[str, Any], session: Session, tmp_path: Path
) -> None:
    with rows(session, 2) as data:
        result = trainer(transport="shuffle", **options).fit(data)
        scores = trainer(**options).evaluate(data, module=result.module)
        outputs = trainer(**options).predict(data, module=result.module)
    assert not session.persisted
    assert not files_in(tmp_path)
    with no_jvm(str(tmp_path / "classic")) as spark, rows(spark, 2) as data:
        expected = trainer(**options).fit(data)
        assert bits(result.module) == bits(expected.module)
        assert result.history.column("loss") == expected.history.column("loss")
        assert scores == trainer(**options).evaluate(data, module=result.module)
        assert outputs.tobytes() == trainer(**options).predict(data, module=result.module).tobytes()


class Loses(Hook):
    """Takes what groups have left along, as a lost executor would."""

    def __init__(self, folder: Path, after: int) -> None:
        self.folder, self.after, self.lost = folder, after, 0

    def on_iteration_end(self, run: Run) -> None:
        if run.state.iteration == self.after:
            for path in files_in(self.folder):
                if "sparkdl-kept" in str(path):
                    path.unlink()
                    self.lost += 1


def test_a_direct_group_leaves_files_and_a_run_goes_on_without_them(session: Session, tmp_path: Path) -> None:
    options = {"exchange": "sharded", "iterations_per_job": 2}
    with rows(session, 1) as data:
        expected = trainer(**options).fit(data)
        assert all(expected.history.column("direct"))
        hook = Loses(tmp_path, 4)
        result = trainer(hooks=[hook], commit_every=1, **options).fit(data)
        assert hook.lost
    assert bits(result.module) == bits(expected.module)
    assert not files_in(tmp_path)


def test_large_bytes_travel_as_files(
    session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with rows(session, 2) as data:
        expected = trainer(transport="shuffle").fit(data)
        assert not session.sent
        for name in ("_INLINE_BYTES", "_FIXED_BYTES"):
            monkeypatch.setattr(f"sparkdl.access.connect.access.{name}", 16)
        monkeypatch.setattr("sparkdl.access.connect.files.FILE_BYTES", 1000)
        result = trainer(transport="shuffle").fit(data)
    assert bits(result.module) == bits(expected.module)
    names = {name.rpartition("-")[0] for name in session.sent}
    assert len(names) < len(session.sent)  # some in several files
    assert not files_in(tmp_path)  # tasks delete what is released


def test_files_that_were_sent_before_one_failed_are_deleted(
    session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    access = access_to(session)  # type: ignore[arg-type]
    monkeypatch.setattr("sparkdl.access.connect.access._FIXED_BYTES", 16)
    monkeypatch.setattr("sparkdl.access.connect.files.FILE_BYTES", 40)
    data, add = bytes(range(100)), session.addArtifacts

    def fails(path: str, *, file: bool) -> None:
        if len(session.sent) == 2:
            raise OSError("the connection is lost")
        add(path, file=file)

    monkeypatch.setattr(session, "addArtifacts", fails)
    with pytest.raises(OSError, match="connection"):
        access.send(data)
    monkeypatch.setattr(session, "addArtifacts", add)
    sent = access.send(data)
    sizes = [(tmp_path / name).stat().st_size for name in session.sent]
    assert sizes == [40, 40, 40, 40, 20]

    def reads(_: int, frames: Iterator[Any]) -> Iterator[bytes]:
        yield bytes(sent.ref.read())

    assert access.run_everywhere(reads) == [data]
    assert len(files_in(tmp_path)) == 3
    sent.release()
    access.run_on_executors(lambda: None)
    assert not files_in(tmp_path)
    for _ in range(200):  # a job tells of the last ones, and does not grow
        access.send(data).release()
    assert len(access.outdated) == 500  # type: ignore[attr-defined]
    access.run_on_executors(lambda: None)


@pytest.mark.parametrize("refused", [[], ["persist", "localCheckpoint"]], ids=str)
def test_large_state_comes_back_in_rounds(
    refused: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = {"exchange": "sharded", "transport": "shuffle", "end_when": MaxIteration(3)}
    monkeypatch.setattr("sparkdl.access.connect.tasks.PIECE_BYTES", 64)
    with threads(1), no_server(tmp_path, refused=refused) as session, rows(session, 2) as data:
        expected = trainer(**options).fit(data)
        before = session.jobs
        assert trainer(**options).fit(data).module
        plain = session.jobs - before
        monkeypatch.setattr("sparkdl.access.connect.chain.per_round", lambda _: 2)
        monkeypatch.setattr("sparkdl.access.connect.chain.PIECE_BYTES", 1)
        before = session.jobs
        result = trainer(**options).fit(data)
        assert (session.jobs - before > 2 * plain) == (not refused)
        assert len(session.persisted) == (not refused)  # the tokens
    assert bits(result.module) == bits(expected.module)


def test_missing_rows_are_built_again(session: Session, tmp_path: Path) -> None:
    with rows(session, 2) as data:
        first = trainer(transport="shuffle").predict(data)
        for path in files_in(tmp_path / "local"):
            path.unlink()
        assert trainer(transport="shuffle").predict(data).tobytes() == first.tobytes()


@pytest.mark.filterwarnings("ignore:3 partitions lie on 1 of 2 executors")
def test_embedding_variables_need_direct_exchange_of_several_executors(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = CASES["embedding variables"]
    with rows(session, 1) as data:
        expected = trainer(transport="shuffle", **options).fit(data)
        assert bits(trainer(**options).fit(data).module) == bits(expected.module)
    access = access_to(session)  # type: ignore[arg-type]
    monkeypatch.setattr(type(access), "count_executors", lambda *_, look=False: 2)
    monkeypatch.setattr(type(access), "executors", lambda _: Executors(2, 1))
    monkeypatch.setattr("sparkdl.allreduce.transport.stages._PAUSE_SECONDS", 0.0)
    with rows(session, 3) as data:  # more than slots
        with pytest.raises(ConfigError, match=r"'table' needs tasks that exchange directly"):
            trainer(transport="shuffle", **options).fit(data)
        with pytest.raises(TaskError, match="tasks on 2 executors do not exchange directly now"):
            trainer(max_failures=1, **options).fit(data)


@pytest.mark.parametrize("options", [{"exchange": "driver"}, {"num_shards": 2}], ids=str)
def test_what_needs_rdds_is_refused(options: dict[str, Any], session: Session) -> None:
    with (
        rows(session, 2) as data,
        pytest.raises(ConfigError, match="needs RDDs, which Spark Connect has not"),
    ):
        trainer(**options).fit(data)


def test_a_client_that_is_too_old_is_told_so(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Frame, "repartitionById")
    with (
        rows(session, 2) as data,
        pytest.raises(ConfigError, match=r"arrays of the client.* need 4\.1 or later"),
    ):
        trainer().fit(data)


def test_models_ask_for_nothing_that_only_the_server_has(session: Session) -> None:
    models = models_in(session)  # type: ignore[arg-type]
    assert models.folders("file:/tmp/model") is None
    assert not models.runs_batches
    sent = models.lasting(b"module")
    assert sent.read() == b"module"
    assert sent.digest == models.lasting(b"module").digest != models.lasting(b"other").digest


def test_a_large_model_travels_as_files_once(session: Session) -> None:
    models = models_in(session)  # type: ignore[arg-type]
    data = bytes(range(256)) * (1 << 13)
    first = models.lasting(data)
    assert first.read() == data
    sent = list(session.sent)
    assert len(sent) == 1
    assert models.lasting(bytes(data)) == first
    assert session.sent == sent
    assert len(cloudpickle.dumps(first)) < 1000


def test_access_is_remembered(session: Session) -> None:
    assert access_to(session) is access_to(session)  # type: ignore[arg-type]


REFUSED = {
    "cache": (["persist"], "does not cache DataFrames"),
    "cache and checkpoints": (["persist", "localCheckpoint"], "neither caches DataFrames .* nor keeps"),
}


@pytest.mark.parametrize(("refused", "news"), REFUSED.values(), ids=REFUSED.keys())
def test_a_session_that_keeps_no_rows_ends_with_the_same_bits(
    refused: list[str], news: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    direct = {"exchange": "sharded", "iterations_per_job": 3, "commit_every": 1}
    with threads(1), no_server(tmp_path / "one") as session:
        with rows(session, 2) as data:
            expected = trainer(transport="shuffle").fit(data)
        with rows(session, 1) as data:
            alone = trainer(**direct).fit(data)
    with threads(1), no_server(tmp_path / "other", refused=refused) as session:
        with rows(session, 2) as data:
            result = trainer(transport="shuffle").fit(data)
            assert trainer().evaluate(data, module=result.module) == {"loss": pytest.approx(1.0, abs=0.5)}
        with rows(session, 1) as data:
            other = trainer(**direct).fit(data)
            assert all(other.history.column("direct"))
        assert not session.persisted
        assert not files_in(tmp_path / "other")
    assert bits(result.module) == bits(expected.module)
    assert bits(other.module) == bits(alone.module)
    told = [record.getMessage() for record in caplog.records if re.search(news, record.getMessage())]
    assert len(told) == 1
    assert "[NOT_SUPPORTED_WITH_SERVERLESS]" in told[0]


def test_rows_that_an_executor_took_along_are_sent_again(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    with rows(session, 2) as data:
        expected = trainer(transport="shuffle").fit(data)
        session.checkpoints[:] = [-1]
        for frame in session.persisted:  # the tokens are lost as well
            frame._kept = None
        result = trainer(transport="shuffle").fit(data)
        assert len(session.checkpoints) == 2
    assert bits(result.module) == bits(expected.module)
    assert "made again" in caplog.text
    assert not session.persisted


def test_a_session_that_sets_no_conf_is_taken_as_it_is(tmp_path: Path) -> None:
    table = pa.table({"token": pa.array([b"one"])})
    for refused in ([], ["conf"]):
        with no_server(tmp_path / str(len(refused)), refused=refused) as session:
            access = access_to(session)  # type: ignore[arg-type]
            frames = access.written(session.createDataFrame(table), iter, 7)
            assert access.collect(frames) == [b"one"]
            assert session.conf.values == {}


def test_jobs_that_read_the_source_anew_get_as_many_rows_at_a_time() -> None:
    source = ConnectFrames(lambda: None, rows_per_batch=7)  # type: ignore[arg-type, return-value]
    task = ConnectFrames(lambda: None, parent=source)  # type: ignore[arg-type, return-value]
    assert (source.batch, task.batch) == (7, 7)
    source.stays = True
    assert (source.batch, task.batch) == (7, None)


def test_executors_are_counted_again_when_that_takes_little_of_the_time(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = access_to(session)  # type: ignore[arg-type]
    assert access.count_executors() == 1
    now = time.monotonic() + 1000
    clock = SimpleNamespace(monotonic=lambda: now, sleep=lambda _: None)
    monkeypatch.setattr("sparkdl.access.connect.access.time", clock)
    before = session.jobs
    assert access.count_executors() == 1
    assert session.jobs == before
    assert access.count_executors(look=True) == 1
    assert session.jobs == before + 1


class Squares(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 25

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), index / 25), index % 3


def test_a_dataset_of_torch(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with no_jvm(str(tmp_path / "classic")) as spark:
        with Dataset.from_torch(Squares(), spark=spark, num_partitions=2) as data:
            tokens, expected = data.store().partitions, trainer(batch_size=13).fit(data)
        assert not spark.sparkContext.broadcasts
    monkeypatch.setattr("sparkdl.access.connect.access._FIXED_BYTES", 16)
    with Dataset.from_torch(Squares(), spark=session, num_partitions=2) as data:  # type: ignore[arg-type]
        assert [token.content for token in data.store().partitions] == [token.content for token in tokens]
        result = trainer(batch_size=13, transport="shuffle").fit(data)
    assert bits(result.module) == bits(expected.module)
    assert session.sent


def test_what_is_no_rdd_is_refused(session: Session) -> None:
    with pytest.raises(ConfigError, match="got a Frame.*from_dataframe.*Spark Connect has no RDDs"):
        Dataset.from_rdd(session.createDataFrame(pa.table({})))


_PARSED, _ANALYZED = "== Parsed Logical Plan ==\n", "\n== Analyzed Logical Plan ==\na: bigint\n"


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ("Project [id#1L, (id#1L + cast(1 as bigint)) AS c#2L]\n+- Range (0, 10, step=1)", True),
        ("Project [id#1L, rand#5, brand(id#1L) AS c#2L]", True),  # a column of this name, another function
        ("+- View (`v`, [x#13])\n   +- Project [rand(6922426240544536900) AS x#11]", False),
        ("Project [id#1L, uuid(Some(2570744977943612521)) AS u#5]", False),
        ("Aggregate [k#1L], [k#1L, collect_list(id#2L, 0, 0) AS c#3]", False),
        ("Project [a#1, ... 17 more fields]", False),
        (f"{_PARSED}Window [a#1]\n{_ANALYZED}GlobalLimit 5\n+- LocalLimit 5\n   +- Window [a#1]", True),
        (f"{_ANALYZED}Aggregate [a#1], [sum(b#2)]\n+- GlobalLimit 5\n   +- LocalLimit 5", False),
        (f"{_ANALYZED}Join Inner\n:- Range (0, 9)\n+- Project\n   +- Sample 0.0, 0.5, false, 3", False),
    ],
)
def test_the_text_of_a_plan_tells_what_may_change(text: str, repeats: bool) -> None:
    """Spark Connect has no other answer: rows of rand() were in both parts of a validation, or in none."""
    found = _query(text, ())
    assert is_deterministic(found) is repeats
    assert found.sparkSession.conf.values == {}


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_python_function_tells_of_itself(deterministic: bool) -> None:
    proto = pytest.importorskip("pyspark.sql.connect.proto")
    function = proto.CommonInlineUserDefinedFunction(function_name="f", deterministic=deterministic)
    call = proto.Expression(common_inline_user_defined_function=function)
    rows = proto.Relation(project=proto.Project(input=proto.Relation(), expressions=[call]))
    assert is_deterministic(_query("Project [f(id#1L)#2L AS f(id)#3L]", rows)) is deterministic


def _query(text: str, plan: Any) -> Any:
    """Return a DataFrame of Spark Connect as far as it is asked."""
    values: dict[str, str] = {}
    conf = SimpleNamespace(values=values, get=values.get, set=values.__setitem__, unset=values.pop)

    def explain(*, extended: bool) -> str:
        assert extended
        assert int(values["spark.sql.debug.maxToStringFields"]) > 10_000
        return text

    return SimpleNamespace(
        sparkSession=SimpleNamespace(conf=conf, client=None),
        _explain_string=explain,
        _plan=SimpleNamespace(
            to_proto=lambda _: (
                plan or SimpleNamespace(DESCRIPTOR=SimpleNamespace(fields_by_name={}), ListFields=list)
            )
        ),
    )
