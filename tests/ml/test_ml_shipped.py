"""A module on its way to the tasks: its tensors are memory that processes share."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import stat
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from pyspark.sql import SparkSession
from torch import nn

from sparkdl import TorchModel
from sparkdl.access.models import Inline, digest_of
from sparkdl.exceptions import SerializationError
from sparkdl.ml.stages import shipped
from sparkdl.nn import serialize
from sparkdl.nn.prepack import prepack


@dataclass
class Counted:
    """Bytes of which is noted how often they are read."""

    data: bytes
    reads: list[int] = field(default_factory=list)

    @property
    def digest(self) -> str:
        return digest_of(self.data)

    def read(self) -> bytes:
        self.reads.append(os.getpid())
        return self.data


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An executor's folder, and no module in this process."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(shipped, "_models", OrderedDict())
    monkeypatch.setattr(shipped, "_MAPPED_BYTES", 1000)
    return tmp_path / "sparkdl-modules"


def linear(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(40, 50), nn.ReLU(), nn.Linear(50, 3))


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.name != "lock")


def is_mapped(module: nn.Module, path: Path) -> bool:
    """Return whether the weights lie in the mapping of a file."""
    addresses = [parameter.data_ptr() for parameter in module.parameters()]
    spans = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            spans.append((begin, end))
    return all(any(begin <= address < end for begin, end in spans) for address in addresses)


def test_weights_are_a_file_that_the_first_process_writes(local: Path) -> None:
    module = linear()
    sent, x = Counted(serialize.dumps_module(module)), torch.randn(64, 40)
    loaded = shipped.load_shipped(sent).module
    assert is_mapped(loaded, local / sent.digest)
    with torch.inference_mode():
        torch.testing.assert_close(loaded(x), module(x))
    assert shipped.load_shipped(sent).module is loaded
    shipped._models.clear()  # another process of the executor
    again = shipped.load_shipped(sent).module
    assert (len(sent.reads), is_mapped(again, local / sent.digest), again is loaded) == (1, True, False)
    assert stat.S_IMODE(local.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in local.iterdir()} == {0o600}


def test_what_a_process_writes_into_weights_is_its_own(local: Path) -> None:
    sent = Counted(serialize.dumps_module(linear()))
    first = shipped.load_shipped(sent).module
    with torch.no_grad():
        next(first.parameters()).fill_(7)
    shipped._models.clear()
    second = shipped.load_shipped(sent).module
    assert torch.equal(next(second.parameters()), next(linear().parameters()))


def _load(sent: Counted, queue: multiprocessing.Queue[tuple[int, float]]) -> None:
    weight = next(shipped.load_shipped(sent).module.parameters())
    queue.put((len(sent.reads), float(weight.detach().sum())))


def test_of_processes_that_begin_together_one_reads(local: Path) -> None:
    sent = Counted(serialize.dumps_module(linear()))
    fork = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[tuple[int, float]] = fork.Queue()  # type: ignore[assignment]
    processes = [fork.Process(target=_load, args=(sent, queue)) for _ in range(4)]
    for process in processes:
        process.start()
    found = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(reads for reads, _ in found) == [0, 0, 0, 1]
    assert {value for _, value in found} == {float(next(linear().parameters()).detach().sum())}


def test_files_that_were_not_used_for_longest_make_room(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [Counted(serialize.dumps_module(linear(seed))) for seed in range(3)]
    monkeypatch.setattr(shipped, "_KEPT_BYTES", 5 * len(sent[0].data) // 2)
    for n, one in enumerate((sent[0], sent[1], sent[0], sent[2])):
        shipped._models.clear()
        loaded = shipped.load_shipped(one).module
        os.utime(local / one.digest, (n, n))
    assert files(local) == sorted([sent[0].digest, sent[2].digest])
    (local / sent[2].digest).unlink()
    assert torch.equal(next(loaded.parameters()), next(linear(2).parameters()))  # the mapping stays


def test_workers_of_an_executor_map_one_file(spark: SparkSession) -> None:
    module = nn.Sequential(nn.Linear(40, 60_000), nn.ReLU(), nn.Linear(60_000, 2))
    model = TorchModel.from_module(module, featuresCol="x", predictionCol="y")
    table = spark.createDataFrame([([float(n)] * 40,) for n in range(8)], "x array<float>").repartition(2)
    found = [row.y for row in model.transform(table).collect()]
    assert len(found) == 8
    name = digest_of(serialize.dumps_module(module.eval()))
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # a process that has ended
            mapped |= {line.split()[-1] for line in maps.read_text().splitlines() if line.endswith(name)}
    assert len(mapped) == 1


def test_small_modules_and_those_outside_of_executors_are_no_files(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Counted(serialize.dumps_module(linear()))
    monkeypatch.setattr(shipped, "_MAPPED_BYTES", 1 << 20)
    assert not is_mapped(shipped.load_shipped(sent).module, local / sent.digest)
    assert files(local) == []
    monkeypatch.setattr(shipped, "_MAPPED_BYTES", 1)
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    shipped._models.clear()
    shipped.load_shipped(sent)
    assert files(local) == []


def test_a_full_disk_leaves_the_module_in_memory(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, parts: object) -> None:
        raise OSError(28, "No space left on device")

    sent = Counted(serialize.dumps_module(linear()))
    monkeypatch.setattr(os, "writev", full)
    loaded = shipped.load_shipped(sent).module
    assert torch.equal(next(loaded.parameters()), next(linear().parameters()))
    assert files(local) == []


@pytest.mark.parametrize("how", ["mode", "link"])
def test_a_folder_that_others_can_write_into_is_not_trusted(local: Path, tmp_path: Path, how: str) -> None:
    sent = Counted(serialize.dumps_module(linear()))
    bad = local if how == "mode" else tmp_path / "theirs"
    bad.mkdir()
    (bad / sent.digest).write_bytes(serialize.dumps_module(linear(1)))
    if how == "mode":
        local.chmod(0o777)
    else:
        local.symlink_to(bad)
    loaded = shipped.load_shipped(sent).module
    assert torch.equal(next(loaded.parameters()), next(linear().parameters()))
    assert len(sent.reads) == 1


def test_what_pickles_keep_is_kept(local: Path) -> None:
    class Own(nn.Module):  # cannot be imported by name
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(30, 30)
            self.two = nn.Linear(30, 30)
            self.two.weight = self.one.weight
            self.register_buffer("edge", torch.arange(900.0).reshape(30, 30)[:, :15])
            self.size = 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.two(self.one(x))
            return result

    sent = Counted(serialize.dumps_module(Own()))
    loaded = shipped.load_shipped(sent).module
    assert loaded.one.weight is loaded.two.weight
    assert torch.equal(loaded.edge, torch.arange(900.0).reshape(30, 30)[:, :15])  # type: ignore[arg-type]
    assert loaded.size == 3


def test_a_module_that_torch_does_not_save_travels_as_before(local: Path) -> None:
    module = nn.Linear(30, 30)
    module.bits = module.weight.detach().view(torch.int32)  # type: ignore[assignment]
    data = serialize.dumps_module(module)
    assert not serialize.can_map(data)
    loaded = shipped.load_shipped(Inline("bits", data)).module
    assert torch.equal(loaded.weight, module.weight)  # type: ignore[arg-type]
    assert files(local) == []


def test_what_cannot_be_pickled_is_named() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].stream = (n for n in range(3))  # type: ignore[assignment]
    with pytest.raises(SerializationError, match=r"the module\.0\.stream is a generator"):
        serialize.dumps_module(module)


def test_the_same_module_has_the_same_name() -> None:
    assert serialize.dumps_module(linear()) == serialize.dumps_module(linear())


@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
def test_layers_without_copies_compute_the_same(rows: int) -> None:
    layer, x = nn.Linear(300, 200), torch.randn(rows, 300)
    with torch.no_grad():
        expected = layer(x)
        torch.testing.assert_close(prepack(layer, copies=False)(x), expected, rtol=1e-5, atol=1e-6)
    assert layer.forward.packed.data_ptr() == layer.weight.data_ptr()
