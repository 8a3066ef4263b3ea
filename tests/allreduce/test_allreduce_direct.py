"""Groups whose tasks exchange among themselves, on a real Spark: the bits of shuffles, and nothing left."""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from support.data import as_dataset, partitioned
from support.fits import fit
from support.models import Everything, mlp
from support.no_jvm import no_jvm
from support.reference import assert_bit_equal
from torch import nn

from sparkdl._spark.jobs import FrameJobs
from sparkdl.allreduce.choose import Wanted
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.train import EveryEpoch, Hook, Run
from sparkdl.wire.layout import ParamLayout, lay_out

TWO = partitioned([130, 110])
FIVE = partitioned([60, 50, 55, 45, 40])
"""More than there are task slots."""


def listening() -> list[str]:
    """Return the addresses at which Python processes that this one has started listen."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "python" in child.name():
                found += [
                    str(one.laddr)
                    for one in child.net_connections("inet")
                    if one.status == psutil.CONN_LISTEN
                ]
        except psutil.NoSuchProcess:
            continue
    return found


class FreezesMidway(Hook):
    """Looks at the weights and freezes a layer in the middle of a group, which is undone."""

    def on_iteration_end(self, run: Run) -> None:
        if run.state.iteration == 5:
            run.freeze("0.*")


@pytest.mark.parametrize("exchange", ["replicated", "sharded"])
def test_direct_exchange_has_the_bits_of_shuffles(spark: Any, exchange: Any) -> None:
    store = spark.sparkContext._jsc.sc().statusStore()
    with as_dataset(spark, TWO) as data:
        wanted = fit(data, Everything(), exchange=exchange)
        before = {store.jobsList(None).apply(i).jobId() for i in range(store.jobsList(None).size())}
        found = fit(data, Everything(), exchange=exchange, transport="direct")
    jobs = store.jobsList(None)
    names = [
        jobs.apply(i).description().get()
        for i in range(jobs.size())
        if jobs.apply(i).jobId() not in before and jobs.apply(i).description().isDefined()
    ]
    assert_bit_equal(found.module, wanted.module)
    assert wanted.history.column("direct") == [0] * 12
    assert found.history.column("direct") == [1] * 12
    assert any(name.endswith(", direct") for name in names)
    assert not listening()


def test_a_group_that_is_undone_and_validated(spark: Any) -> None:
    with as_dataset(spark, TWO) as data, as_dataset(spark, partitioned([30, 20])) as validation:
        options = {"validation": validation, "validate_when": EveryEpoch(), "iterations_per_job": 4}
        wanted = fit(data, mlp(), hooks=[FreezesMidway()], **options)
        found = fit(data, mlp(), hooks=[FreezesMidway()], transport="direct", **options)
    assert_bit_equal(found.module, wanted.module)
    assert found.history.validations == wanted.history.validations


@pytest.mark.parametrize("exchange", ["replicated", "sharded"])
def test_tasks_run_several_partitions_where_slots_are_few(
    spark: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch, exchange: Any
) -> None:
    dropped: list[int] = []  # partitions that would be built again
    monkeypatch.setattr(FrameJobs, "drop_block", lambda _, rdd, partition: dropped.append(partition))
    with as_dataset(spark, FIVE) as data, caplog.at_level(logging.WARNING, "sparkdl"):
        found = fit(data, Everything(), exchange=exchange, transport="direct", iterations_per_job=5)
        wanted = fit(data, Everything(), exchange=exchange)
    assert_bit_equal(found.module, wanted.module)
    assert found.history.column("direct") == [1] * 12
    assert not dropped
    assert not [record.message for record in caplog.records if "directly" in record.message]
    assert not listening()


class Fails(nn.Module):
    """Fails on the rows of some iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = mlp()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 5:
            raise ValueError("five")
        found: torch.Tensor = self.layer(x)
        return found


def test_a_failing_module_ends_like_by_shuffles(spark: Any) -> None:
    with as_dataset(spark, TWO) as data:
        with pytest.raises(ModelError, match="five") as failure:
            fit(data, Fails(), transport="direct", iterations_per_job=8)
        assert failure.value.result.state.iteration == 4
    assert 'raise ValueError("five")' in str(failure.value)  # the user's own traceback
    assert not listening()


class KillsItsExecutor:
    """A loss that sends the executor of the first task that finds a file a signal, in mid-group."""

    def __init__(self, flag: str, sent: signal.Signals = signal.SIGKILL) -> None:
        self.flag, self.sent = flag, sent
        self.inner = nn.CrossEntropyLoss()

    def __call__(self, output: Any, label: Any) -> Any:
        try:
            os.remove(self.flag)
        except FileNotFoundError:
            return self.inner(output, label)
        parent = psutil.Process()
        while "CoarseGrainedExecutorBackend" not in " ".join(parent.cmdline()):
            parent = parent.parent()
        os.kill(parent.pid, self.sent)
        return self.inner(output, label)


class ArmsAt(Hook):
    """Lets an executor be killed once some iterations are done."""

    def __init__(self, flag: Path, iteration: int) -> None:
        self.flag, self.iteration = flag, iteration

    def on_iteration_end(self, run: Run) -> None:
        if run.state.iteration == self.iteration:
            self.flag.touch()


# With the other plan processes are killed in test_direct_processes.py, without a JVM.
@pytest.mark.parametrize(
    ("exchange", "partitions"),
    [
        pytest.param("replicated", TWO, id="replicated"),
        pytest.param("sharded", FIVE, id="sharded, few slots", marks=pytest.mark.slow),
        pytest.param("sharded", TWO, id="sharded", marks=pytest.mark.slow),
    ],
)
def test_an_executor_killed_in_a_direct_group_changes_no_bit(
    cluster: Any, tmp_path: Path, exchange: Any, partitions: Any
) -> None:
    flag = tmp_path / "kill"
    options = {"exchange": exchange, "iterations_per_job": 8}
    with no_jvm(str(tmp_path)) as alone, as_dataset(alone, partitions) as data:
        wanted = fit(data, Everything(), 24, **options)
    with as_dataset(cluster, partitions) as data:
        loss, hooks = KillsItsExecutor(str(flag)), [ArmsAt(flag, 16)]
        found = fit(data, Everything(), 24, loss=loss, hooks=hooks, transport="direct", **options)
    assert_bit_equal(found.module, wanted.module)
    assert not flag.exists()
    direct = found.history.column("direct")
    assert direct[:16] == [1] * 16
    assert not listening()


LEAVING = {
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
    "spark.storage.decommission.rddBlocks.enabled": "true",
}


@pytest.mark.slow
def test_an_executor_that_is_told_to_leave_takes_no_further_part(sessions: Any, tmp_path: Path) -> None:
    flag = tmp_path / "leave"
    with no_jvm(str(tmp_path)) as alone, as_dataset(alone, TWO) as data:
        wanted = fit(data, Everything(), 1500, iterations_per_job=50)
    with as_dataset(sessions.get("local-cluster[2,1,2048]", **LEAVING), TWO) as data:
        loss, hooks = KillsItsExecutor(str(flag), signal.SIGPWR), [ArmsAt(flag, 300)]
        found = fit(
            data, Everything(), 1500, loss=loss, hooks=hooks, transport="direct", iterations_per_job=50
        )
    assert_bit_equal(found.module, wanted.module)
    assert not flag.exists()
    # It still has its rows and its process, but whoever waited for it would go by shuffles.
    assert sum(found.history.column("direct")) >= 1400


def session_with(**conf: str) -> Any:
    return SimpleNamespace(
        conf=lambda name, default="": conf.get(name, default), moves_tasks=False, has_sync=True
    )


def wants(transport: Any, numel: int = 6, reductions: int = 0) -> Wanted:
    layout = ParamLayout(lay_out([("w", (numel,), 0)]))
    return Wanted(
        exchange="auto",
        layout=layout,
        reductions=reductions,
        stateful=False,
        averaging=False,
        tables=(),
        weights_codec="fp32",
        num_shards=None,
        stragglers=False,
        transport=transport,
    )


@pytest.mark.parametrize("name", ["spark.network.crypto.enabled", "spark.ssl.rpc.enabled"])
def test_a_session_that_asks_for_encryption_gets_shuffles(name: str) -> None:
    session = session_with(**{name: "true", "spark.sparkdl.transport": "direct"})
    assert not wants("auto").exchanges_directly(session, "replicated")
    with pytest.raises(ConfigError, match=rf"transport='direct': {name}=true asks for encryption"):
        wants("direct").exchanges_directly(session, "replicated")


def test_the_conf_chooses_for_auto() -> None:
    session = session_with(**{"spark.sparkdl.transport": "shuffle"})
    assert not wants("auto").exchanges_directly(session, "sharded")
    assert wants("direct").exchanges_directly(session, "sharded")
    with pytest.raises(ConfigError, match=r"spark\.sparkdl\.transport=fast: expected one of"):
        wants("auto").exchanges_directly(session_with(**{"spark.sparkdl.transport": "fast"}), "sharded")


@pytest.mark.parametrize("name", ["spark.sparkdl.direct.wait", "spark.sparkdl.direct.patience"])
@pytest.mark.parametrize("value", ["3s", "0", "nan"])
def test_seconds_that_are_none_are_told_before_anything_runs(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}={value}: expected a number of seconds above 0"):
        wants("auto").exchanges_directly(session_with(**{name: value}), "sharded")


def test_tasks_exchange_directly_unless_something_forbids_it() -> None:
    session = session_with()
    assert wants("auto").exchanges_directly(session, "sharded")
    assert not wants("auto").exchanges_directly(session, "driver")
    assert not wants("shuffle").exchanges_directly(session, "sharded")
    for name, value in (("spark.python.worker.reuse", "false"), ("spark.ssl.enabled", "true")):
        assert not wants("auto").exchanges_directly(session_with(**{name: value}), "sharded")


def test_models_are_sharded_earlier_where_tasks_exchange_directly() -> None:
    chosen = [
        wants(transport, numel, reductions).choose(session_with(), 2)
        for transport, numel, reductions in [
            ("auto", 1 << 20, 0),  # 4 MiB from each of two
            ("auto", (1 << 20) + 1, 0),
            ("auto", (1 << 20) + 1, 1),  # a norm takes one more exchange, and shards have other sums
            ("shuffle", 4 << 20, 0),
            ("shuffle", (4 << 20) + 1, 0),
        ]
    ]
    assert chosen == ["replicated", "sharded", "replicated", "replicated", "sharded"]


def test_embedding_variables_beside_too_large_weights_are_refused() -> None:
    large = 200 << 20  # 800 MiB: shards of two are larger than 256 MiB
    assert wants("auto", large).choose(session_with(), 2) == "driver"
    keyed = replace(wants("auto", large), keyed=("users",))
    with pytest.raises(ConfigError, match=r"beside 800 MiB of other weights.*num_partitions"):
        keyed.choose(session_with(), 2)
    assert keyed.choose(session_with(), 4) == "sharded"
    assert replace(keyed, exchange="replicated").choose(session_with(), 2) == "replicated"


def test_the_driver_plan_and_new_processes_forbid_it() -> None:
    with pytest.raises(ConfigError, match="through the driver"):
        wants("direct").exchanges_directly(session_with(), "driver")
    with pytest.raises(ConfigError, match="worker.reuse=false"):
        wants("direct").exchanges_directly(session_with(**{"spark.python.worker.reuse": "false"}), "sharded")


def test_the_secret_is_not_shown() -> None:
    from sparkdl.allreduce.transport.direct.task import Rendezvous

    assert "abcdefgh" not in repr(Rendezvous(b"abcdefgh", "host", 3.0, 120.0))
