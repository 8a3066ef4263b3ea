"""Training from Parquet files where they lie, beside plain torch that is fed the same batches."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from support.faults import Faults, disturbed
from support.ratings import keyed, pairs
from torch import nn
from torchmetrics import MeanAbsoluteError

from sparkdl import Column, Dataset, html
from sparkdl.data import Pad
from sparkdl.data.given import folds_of, share_of
from sparkdl.data.scan.manifest import ScanManifest
from sparkdl.data.scan.order import in_files, order_of
from sparkdl.data.scan.reader import Reader
from sparkdl.data.streams import FROM_THE_BEGINNING, RowShare
from sparkdl.exceptions import ConfigError, DataError, NonFiniteError, TaskError
from sparkdl.train import Checkpoint, Elastic, EveryIterations, Hook, MaxIteration, Trainer

ROWS, GROUPS, BATCH = 1000, (90, 40, 70, 50), 60
OPTIMIZER = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A folder of files with row groups of several sizes."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, 5))
    y = x @ np.arange(5.0) + 0.1 * generator.normal(size=ROWS)
    folder = tmp_path / "table"
    folder.mkdir()
    whole = pa.table({"x": list(x), "y": y, "w": 1 + np.arange(ROWS) % 3, "name": ["a"] * ROWS})
    for number, size in enumerate(GROUPS):
        part = whole.slice(250 * number, 250)
        parquet.write_table(part, folder / f"part-{number}.parquet", row_group_size=size)
    (folder / "_SUCCESS").touch()
    return folder


def values(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    found = parquet.read_table(folder)
    return torch.from_numpy(np.stack(found["x"].to_numpy())), torch.from_numpy(found["y"].to_numpy())


def dataset(folder: Path, spark: Any, partitions: int | None = None, **options: Any) -> Dataset:
    x, y = Column("x", dtype="float64"), Column("y", shape=(1,), dtype="float64")
    options = {"window": 8_000, "streams": 6} | options
    return Dataset.from_parquet(
        folder, features=x, label=y, num_partitions=partitions, spark=spark, **options
    )


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()


def trainer(iterations: int, **options: Any) -> Trainer:
    end = MaxIteration(iterations)
    options = {"batch_size": BATCH, "seed": 5, "end_when": end, "progress": False} | options
    return Trainer(module(), loss=nn.MSELoss(), optimizer=OPTIMIZER, **options)


def manifest_of(data: Dataset) -> ScanManifest:
    found: ScanManifest = data.source.manifest(data.plan)  # type: ignore[attr-defined]
    return found


def plain(folder: Path, manifest: ScanManifest, iterations: int, shuffle: bool) -> nn.Module:
    """Train in plain torch on the batches that the order gives."""
    x, y = values(folder)
    model = module()
    optimizer = OPTIMIZER(model.parameters())
    steps = -(-ROWS // BATCH)
    for iteration in range(iterations):
        epoch, step = divmod(iteration, steps)
        order = order_of(manifest.layout, 5, epoch) if shuffle else in_files(manifest.layout)
        rows = order.numbers(order.parts(FROM_THE_BEGINNING.slots(ROWS, steps, step), 0, 1))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), y[rows, None]).backward()
        optimizer.step()
    return model


def assert_close(found: nn.Module, expected: nn.Module, atol: float = 1e-12) -> None:
    for a, b in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("transport", ["auto", "shuffle"])
@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_weights_are_those_of_plain_torch(
    table: Path, spark: Any, partitions: int, transport: str, shuffle: bool
) -> None:
    with dataset(table, spark, partitions) as data:
        result = trainer(20, transport=transport, shuffle=shuffle).fit(data)  # three more than an epoch
        assert len(data) == ROWS
        expected = plain(table, manifest_of(data), 20, shuffle)
    assert_close(result.module, expected)
    assert sum(result.history.column("samples")[:17]) == ROWS


class OfTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.x, self.day = (nn.Linear(1, 1, dtype=torch.float64) for _ in range(2))

    def forward(self, x: torch.Tensor, day: torch.Tensor) -> torch.Tensor:
        return self.x(x) + self.day(day)


def plain_of_two(
    manifest: ScanManifest, x: torch.Tensor, day: torch.Tensor, y: torch.Tensor, w: torch.Tensor
) -> nn.Module:
    """Train in plain torch for two epochs."""
    model = OfTwo()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = -(-len(x) // 30)
    for iteration in range(2 * steps):
        epoch, step = divmod(iteration, steps)
        order = order_of(manifest.layout, 5, epoch)
        rows = order.numbers(order.parts(FROM_THE_BEGINNING.slots(len(x), steps, step), 0, 1))
        optimizer.zero_grad()
        errors = (model(x[rows], day[rows]) - y[rows])[:, 0] ** 2
        ((errors * w[rows]).sum() / w[rows].sum()).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("partitions", [1, 2, 3])
@pytest.mark.parametrize("files_have", ["x", "nothing that is read"])
def test_names_of_folders_are_columns(tmp_path: Path, spark: Any, partitions: int, files_have: str) -> None:
    for day in range(1, 9):
        sign = "-" * (day % 2)
        folder = tmp_path / f"day={day}" / f"w={day % 3 + 1}" / f"y={sign}0.5"
        write(folder, "a.parquet", x=np.arange(25.0) / 25 - day / 9)
    found = parquet.read_table(tmp_path).to_pandas()  # pyarrow reads the folders in its own way
    x = found["x" if files_have == "x" else "w"].to_numpy("float64")[:, None]
    tensors = [x, *(found[name].to_numpy("float64")[:, None] for name in ("day", "y")), found["w"].to_numpy()]
    x, day, y, w = map(torch.from_numpy, tensors)
    of_rows = [Column(name, (1,), "float64") for name in ("x" if files_have == "x" else "w", "day", "y")]
    model, optimizer = OfTwo(), partial(torch.optim.SGD, lr=0.01)
    with Dataset.from_parquet(
        tmp_path,
        features=of_rows[:2],
        label=of_rows[2],
        weight="w",
        num_partitions=partitions,
        streams=6,
        window=3000,
        spark=spark,
    ) as data:
        fit = Trainer(
            model,
            loss=nn.MSELoss(reduction="none"),
            optimizer=optimizer,
            batch_size=30,
            seed=5,
            end_when=MaxIteration(14),
            progress=False,
        )
        result, manifest = fit.fit(data), manifest_of(data)
    assert manifest.read_columns == (["x"] if files_have == "x" else [])
    expected = plain_of_two(manifest, x, day, y, w)
    assert_close(result.module, expected)


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_a_version_of_a_delta_table_stays_the_same(tmp_path: Path, spark: Any, partitions: int) -> None:
    deltalake = pytest.importorskip("deltalake")
    path, number = tmp_path / "a table", np.arange(240)
    table = pa.table({"n": number, "x": number / 240, "y": (number % 7) / 7, "day": number // 80})
    for part in range(3):
        deltalake.write_deltalake(path, table.slice(80 * part, 70), partition_by=["day"], mode="append")
    deltalake.DeltaTable(path).delete("n % 10 = 3")
    version = deltalake.DeltaTable(path).version()
    x, day, y = (Column(name, (1,), "float64") for name in ("x", "day", "y"))
    options = {"window": 3000, "streams": 6, "spark": spark, "num_partitions": partitions}
    with Dataset.from_delta(path, features=[x, day], label=y, **options) as data:
        deltalake.write_deltalake(path, table, mode="append")
        fit = Trainer(
            OfTwo(),
            loss=nn.MSELoss(),
            optimizer=partial(torch.optim.SGD, lr=0.01),
            batch_size=30,
            seed=5,
            end_when=MaxIteration(14),
            progress=False,
        )
        result, manifest = fit.fit(data), manifest_of(data)
        assert f"version <b>{version}</b>" in data._repr_html_()
        data.release()
        assert len(data) == 189  # of the same version, though the files are listed again
    with Dataset.from_delta(path, version, features=[x, day], label=y, **options) as data:
        data.store()
        assert manifest_of(data).content == manifest.content
    # By the numbers of the rows, deltalake's own reading of the version tells the other columns.
    found = deltalake.DeltaTable(path, version).to_pyarrow_table().to_pandas().set_index("n")
    rows = found.loc[np.concatenate([parquet.ParquetFile(f.path).read()["n"] for f in manifest.files])]
    tensors = (torch.tensor(rows[name].to_numpy("float64")[:, None]) for name in ("x", "day", "y"))
    assert_close(result.module, plain_of_two(manifest, *tensors, torch.ones(189)))


def test_folders_that_give_no_numbers_are_refused_by_name(tmp_path: Path, spark: Any) -> None:
    def refused(match: str, feature: str) -> None:
        with pytest.raises(DataError, match=match):
            Dataset.from_parquet(tmp_path, features=feature, label="x", spark=spark)

    for day, hour in (("2024-01-01", "1"), ("2024-01-02", "__HIVE_DEFAULT_PARTITION__")):
        write(tmp_path / f"day={day}" / f"hour={hour}" / "shop=a%20b" / "y=3", "a.parquet", x=[1.0], y=[1.0])
    refused("'day' has type date32.*: turn dates into numbers", "day")
    refused("'shop' has type string: turn strings into numbers", "shop")
    refused("'hour' is null in .*day=2024-01-02/hour=__HIVE_DEFAULT_PARTITION__/.*; drop or fill", "hour")
    refused("column 'y' is there 2 times among day, hour, shop, x, y, y", "y")


def test_without_shuffle_the_order_is_that_of_the_files(table: Path, spark: Any) -> None:
    with dataset(table, spark, 2) as data:
        data.store()
        order = in_files(manifest_of(data).layout)
    found = order.numbers(order.parts((0, ROWS), 0, 1))
    assert found.tolist() == list(range(ROWS))


def test_the_history_counts_the_bytes_of_files(table: Path, spark: Any) -> None:
    expected = 0
    for file in table.glob("*.parquet"):
        footer = parquet.read_metadata(file)
        for group in map(footer.row_group, range(footer.num_row_groups)):
            columns = [group.column(n) for n in range(group.num_columns)]
            expected += sum(
                c.total_compressed_size for c in columns if c.path_in_schema.split(".")[0] in ("x", "y")
            )
    with dataset(table, spark, 1, window=10_000_000, streams=1) as data:
        found = trainer(17).fit(data).history  # an epoch
    assert sum(row["bytes"]["files"] for row in found) == expected  # each row group once, neither w nor name
    assert all(row["phases"]["data"] > 0 for row in found)


def row_groups_kept(spark: Any) -> int:
    """Return the files of row groups that executors keep."""

    def count(_: Any) -> int:
        folders = map(Path, os.environ["SPARK_LOCAL_DIRS"].split(","))
        found = [path.name for folder in folders for path in folder.glob("sparkdl/*/row-groups-*/*")]
        return sum(map(str.isdecimal, found))

    return sum(spark.sparkContext.parallelize([0], 1).map(count).collect())


@pytest.mark.parametrize("partitions", [1, 2])
def test_row_groups_that_executors_keep_are_read_once(table: Path, spark: Any, partitions: int) -> None:
    histories, modules = [], []
    for cache_bytes in (0, 1 << 30):
        with dataset(table, spark, partitions, cache_bytes=cache_bytes) as data:
            result = trainer(34).fit(data)  # two epochs
            groups = len(manifest_of(data).rows)
            assert row_groups_kept(spark) == (groups if cache_bytes else 0)
            assert ("cache" in data._repr_html_()) == bool(cache_bytes)
        histories.append([row["bytes"]["files"] for row in result.history])
        for shown in (result, result.history):
            assert f"read from files <b>{html.amount(sum(histories[-1]))}</b>" in shown._repr_html_()
        modules.append(result.module)
    for a, b in zip(*(module.parameters() for module in modules), strict=True):
        assert torch.equal(a, b)
    without, with_cache = histories
    assert sum(with_cache[:17]) > 0
    assert sum(with_cache[17:]) == 0 < sum(without[17:])
    assert not row_groups_kept(spark)


def test_batches_do_not_depend_on_partitions_and_bits_not_on_jobs(table: Path, spark: Any) -> None:
    found = []
    for partitions in (1, 2, 3, 6):
        with dataset(table, spark, partitions) as data:
            found.append(trainer(19).fit(data))
    assert len({tuple(result.history.column("samples")) for result in found}) == 1
    for other in found[1:]:
        assert_close(other.module, found[0].module)
    with dataset(table, spark, 3) as data:
        again = trainer(19, iterations_per_job=4, transport="shuffle").fit(data)
    assert_close(again.module, found[2].module, 0)


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (3, 1)])
def test_a_run_goes_on_inside_an_epoch_on_other_partitions(
    table: Path, spark: Any, tmp_path: Path, before: int, after: int
) -> None:
    hooks = [Checkpoint(str(tmp_path / "checkpoints"), every=EveryIterations(5), at_end=False)]
    with dataset(table, spark, before) as data:
        trainer(12, hooks=hooks).fit(data)
    with dataset(table, spark, after) as data:
        resumed = trainer(20, hooks=hooks).fit(data, resume=True)
        expected = plain(table, manifest_of(data), 20, True)
    assert_close(resumed.module, expected)
    if before == after:
        with dataset(table, spark, after) as data:
            assert_close(resumed.module, trainer(20).fit(data).module, 0)


def test_a_run_goes_on_with_the_same_files_only(table: Path, spark: Any, tmp_path: Path) -> None:
    hooks = [Checkpoint(str(tmp_path / "checkpoints"), every=EveryIterations(5), at_end=False)]
    with dataset(table, spark, 2) as data:
        trainer(12, hooks=hooks).fit(data)
    with (
        dataset(table, spark, 3, window=4_000) as data,
        pytest.raises(ConfigError, match="in the middle of an epoch"),
    ):
        trainer(20, hooks=hooks).fit(data, resume=True)
    path = table / "part-1.parquet"
    parquet.write_table(parquet.read_table(path), path, row_group_size=41)
    with (
        dataset(table, spark, 2) as data,
        pytest.raises(ConfigError, match="when the checkpoint was written"),
    ):
        trainer(20, hooks=hooks).fit(data, resume=True)
    with dataset(table, spark, 2) as data:
        result = trainer(20, hooks=hooks).fit(data, resume=True, rows="new")
    assert len(result.history.new_rows) == 1


@pytest.mark.parametrize("kind", ["task", "worker", "executor"])
def test_what_is_lost_changes_no_bit(table: Path, tmp_path: Path, kind: str) -> None:
    def run(spark: Any) -> nn.Module:
        with dataset(table, spark, 3) as data:
            return trainer(9, iterations_per_job=3).fit(data).module

    counted = Faults(tmp_path / "calm")
    (tmp_path / "calm").mkdir()
    with disturbed(counted, tmp_path / "calm") as spark:
        calm = run(spark)
    for number in range(3):
        folder = tmp_path / f"{kind}{number}"
        folder.mkdir()
        faults = Faults(folder, kind, at=3 + number * (counted.tasks - 6) // 3)
        with disturbed(faults, folder) as spark:
            try:
                assert_close(run(spark), calm, 0)
            except TaskError:  # the stand-in cannot repeat all that Spark can
                assert kind == "executor"
        assert faults.happened


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_predictions_and_scores_are_those_of_all_rows_in_order(
    table: Path, spark: Any, partitions: int
) -> None:
    x, y = values(table)
    model = module()
    with dataset(table, spark, partitions) as data, torch.no_grad():
        found = trainer(1).predict(data, module=model, batch_size=64)
        np.testing.assert_allclose(found, model(x).numpy(), rtol=0, atol=1e-12)
        scores = trainer(1).evaluate(data, {"error": MeanAbsoluteError()}, module=model)
        loss = nn.functional.mse_loss(model(x), y[:, None]).item()
        assert scores["loss"] == pytest.approx(loss, abs=1e-6)
        error = (model(x) - y[:, None]).abs().mean().item()
        assert scores["error"] == pytest.approx(error, abs=1e-5)


def test_validation_and_training_of_the_same_and_of_other_rows(table: Path, spark: Any) -> None:
    with dataset(table, spark, 2) as data, dataset(table / "part-2.parquet", spark, 2, streams=2) as other:
        result = trainer(34).fit(data, {"all": data, "some": other})
        expected = plain(table, manifest_of(data), 34, True)
    assert_close(result.module, expected)
    x, y = values(table)
    with torch.no_grad():
        loss = [
            nn.functional.mse_loss(expected(x[rows]), y[rows, None]).item()
            for rows in (slice(None), slice(500, 750))
        ]
    last = {row["name"]: row["loss"] for row in result.history.validations[-2:]}
    assert [last["all"], last["some"]] == pytest.approx(loss, abs=1e-6)


def test_weights_of_rows_count(table: Path, spark: Any) -> None:
    def loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return ((output - label) ** 2).mean(dim=1)

    options: dict[str, Any] = {"features": "x", "label": Column("y", shape=(1,)), "weight": "w"}
    found = []
    for partitions in (1, 2):
        with Dataset.from_parquet(
            table, **options, num_partitions=partitions, streams=4, spark=spark
        ) as data:
            fit = Trainer(
                module().float(),
                loss=loss,
                optimizer=OPTIMIZER,
                batch_size=ROWS,
                end_when=MaxIteration(3),
                progress=False,
            )
            found.append(fit.fit(data).module)
    # All rows are one batch: the order does not matter.
    x, y = values(table)
    model = module().float()
    optimizer = OPTIMIZER(model.parameters())
    weight = torch.from_numpy(parquet.read_table(table)["w"].to_numpy()).float()
    for _ in range(3):
        optimizer.zero_grad()
        (loss(model(x.float()), y.float()[:, None]) * weight).sum().div(weight.sum()).backward()
        optimizer.step()
    for module_ in found:
        assert_close(module_, model, 1e-5)


def test_fewer_row_groups_than_executors_and_more_partitions_than_streams(table: Path, spark: Any) -> None:
    with (
        dataset(table, spark, 7) as data,
        pytest.raises(ConfigError, match=r"num_partitions=7: the 19 row groups are dealt to 6 streams"),
    ):
        data.store()
    with dataset(table, spark, streams=None) as data:
        data.store()
        assert manifest_of(data).streams == 4  # a fourth of the 19 row groups
        shown = data._repr_html_()
    assert "19, in 4 streams" in shown
    with (
        pytest.raises(ConfigError, match="num_partitions='input' needs"),
        dataset(table, spark, "input") as data,
    ):  # type: ignore[arg-type]
        data.store()


class Counts(Hook):
    """A cluster whose executors become more."""

    def __init__(self) -> None:
        self.now = 1
        self.resizes: list[tuple[int, int]] = []

    def on_iteration_end(self, run: Any) -> None:
        self.now = {5: 2, 21: 9}.get(run.state.iteration, self.now)

    def on_resize(self, run: Any, before: int, after: int) -> None:
        self.resizes.append((before, after))


def test_elastic_runs_move_for_free(table: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with dataset(table, spark, streams=3) as data:
        monkeypatch.setattr("sparkdl.train.options.elastic._POLL", 0.0)
        counts = Counts()
        monkeypatch.setattr(
            "sparkdl.access.classic.ClassicAccess.count_executors", lambda access, look=False: counts.now
        )
        fit = trainer(30, elastic=Elastic(settle=0.0, patience=0.0), hooks=[counts])
        result = fit.fit(data)
        assert counts.resizes == [(1, 2), (2, 3)]
        assert len(data.store().partitions) == 3  # no more than streams
        expected = plain(table, manifest_of(data), 30, True)
    assert_close(result.module, expected)


# -- what is wrong ------------------------------------------------------------------------------


def write(folder: Path, name: str, **columns: Any) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    parquet.write_table(pa.table(columns), folder / name, row_group_size=10)
    return folder


def test_a_file_that_changes_is_named(table: Path, spark: Any) -> None:
    def rewrite(_: Any) -> None:
        path = table / "part-2.parquet"
        parquet.write_table(parquet.read_table(path), path, row_group_size=70, compression="none")

    class Rewriting(Hook):
        def on_epoch_end(self, run: Any) -> None:
            rewrite(run)

    with dataset(table, spark, 2) as data:
        with pytest.raises(DataError, match=r"part-2.parquet: the file has changed since") as caught:
            trainer(80, hooks=[Rewriting()]).fit(data)
        assert caught.value.code == "data-changed"
        assert caught.value.result.history  # type: ignore[attr-defined]
        data.release()
        trainer(80).fit(data)  # with the files that there are now


def test_a_file_that_is_gone_is_named(table: Path, spark: Any) -> None:
    with dataset(table, spark, 2) as data:
        data.store()
        (table / "part-3.parquet").unlink()
        with pytest.raises(DataError, match=r"part-3.parquet: the executor on .* cannot read it"):
            trainer(80).fit(data)


def test_nulls_are_found_in_the_footers_and_nan_in_the_rows(tmp_path: Path, spark: Any) -> None:
    options: dict[str, Any] = {"features": "x", "label": "y", "spark": spark, "num_partitions": 1}
    write(tmp_path / "nulls", "a.parquet", x=np.arange(30.0), y=np.arange(30.0))
    folder = write(tmp_path / "nulls", "b.parquet", x=[*np.arange(29.0), None], y=np.arange(30.0))
    with (
        Dataset.from_parquet(folder, **options) as data,
        pytest.raises(
            DataError, match=r"column 'x': 1 nulls among the 10 rows of row group 2 of .*b.parquet"
        ),
    ):
        data.peek()
    labels = np.arange(30.0)
    labels[17] = np.nan
    folder = write(tmp_path / "nan", "a.parquet", x=np.arange(30.0), y=labels)
    with Dataset.from_parquet(folder, **options) as data:
        expected = r"column 'y', row 7 of row group 1 of .*a.parquet: nan must be finite"
        with pytest.raises(DataError, match=expected):
            scalar().fit(data)
        with pytest.raises(DataError, match=expected):
            scalar().evaluate(data)


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


def scalar() -> Trainer:
    return Trainer(
        Scalar(), loss=nn.MSELoss(), optimizer=partial(torch.optim.SGD, lr=1e-6), batch_size=5, progress=False
    )


def test_an_infinite_feature_is_named_by_file_and_row(tmp_path: Path, spark: Any) -> None:
    x = np.arange(30.0)
    x[12] = np.inf
    folder = write(tmp_path / "inf", "a.parquet", x=x, y=np.arange(30.0))
    with (
        Dataset.from_parquet(folder, features="x", label="y", spark=spark, num_partitions=1) as data,
        pytest.raises(NonFiniteError, match=r"column 'x', row 2 of row group 1 of .*a.parquet: inf"),
    ):
        scalar().fit(data)


def test_bad_arguments_are_refused_by_name(table: Path, tmp_path: Path, spark: Any) -> None:
    def refused(error: type[Exception], match: str, paths: Any = table, **options: Any) -> None:
        with pytest.raises(error, match=match):
            Dataset.from_parquet(paths, **({"features": "x", "label": "y", "spark": spark} | options))

    missing = tmp_path / "missing"
    refused(DataError, rf"{missing}: the executor on .* cannot read it: there is no such", missing)
    (tmp_path / "empty").mkdir()
    refused(DataError, "empty: there are no files in this folder", tmp_path / "empty")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.csv").write_text("a,b\n")
    refused(DataError, "a.csv: expected a Parquet file", tmp_path / "text")
    refused(ConfigError, "patterns are not read", f"{table}/*.parquet")
    refused(ConfigError, "expected a path or URL", [])
    refused(ConfigError, "expected a path or URL", 3)
    refused(ConfigError, "is there twice", [table, table])
    refused(ConfigError, "is there twice", [table, table / "part-1.parquet"])
    refused(ConfigError, "of several file systems", [table, "s3://bucket/table"])
    refused(DataError, "features column 'z' is not in the files; they have name, w, x, y", features="z")
    refused(DataError, "features column 'name' has type string: turn strings into numbers", features="name")
    refused(DataError, "weight column 'x' has type list<element: double>; expected one number", weight="x")
    refused(DataError, "needs a DataFrame", features=Column("x", dtype="sparse"))
    for folder in ("day=1", "hour=2"):
        write(tmp_path / "mixed" / folder, "a.parquet", x=[1.0], y=[1.0])
    refused(
        DataError, "hour=2/a.parquet: its folders give 'hour', those of day=1/.* 'day'", tmp_path / "mixed"
    )
    (table / "_delta_log").mkdir()
    refused(ConfigError, "table is a Delta table: .*Train on one version by Dataset.from_delta")
    (table / "_delta_log").rmdir()
    for value, match in (
        (-1, "version=-1: expected the number"),
        (True, "version=True"),
        ("1", "version='1'"),
    ):
        with pytest.raises(ConfigError, match=match):
            Dataset.from_delta(table, value, features="x", spark=spark)
    with pytest.raises(ConfigError, match="path=.*: expected a path or URL of a Delta table"):
        Dataset.from_delta([table], features="x", spark=spark)
    refused(ConfigError, "window=0: expected a positive number of bytes", window=0)
    refused(ConfigError, "cache_bytes=-1: expected a number of bytes", cache_bytes=-1)
    refused(ConfigError, "cache_bytes='1g': expected a number of bytes", cache_bytes="1g")
    refused(ConfigError, "streams=841: expected a positive number up to 840", streams=841)
    refused(ConfigError, "num_partitions=0: expected a positive integer", num_partitions=0)


def test_files_have_one_schema(tmp_path: Path, spark: Any) -> None:
    write(tmp_path / "mixed", "a.parquet", x=np.arange(30.0), y=np.arange(30.0))
    folder = write(tmp_path / "mixed", "b.parquet", x=np.arange(30), y=np.arange(30.0))
    with (
        Dataset.from_parquet(folder, features="x", label="y", spark=spark) as data,
        pytest.raises(DataError, match=r"column 'x' is int64 in .*b.parquet and double in the first file"),
    ):
        data.peek()
    folder = write(tmp_path / "none", "a.parquet", x=np.arange(0.0), y=np.arange(0.0))
    with (
        Dataset.from_parquet(folder, features="x", label="y", spark=spark) as data,
        pytest.raises(DataError, match="the Dataset is empty"),
    ):
        data.peek()


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_share_of_the_rows_is_held_out(table: Path, spark: Any, partitions: int) -> None:
    """The training rows are those that are not validated on, as in plain torch on the same ones."""
    with dataset(table, spark, partitions) as data:
        run = trainer(40, metrics={"mae": MeanAbsoluteError()}, validate_when=MaxIteration(40))
        result = run.fit(data, validation=0.25)
        data.source.manifest(data.plan)  # the Dataset is the caller's
        assert len(data) == ROWS
        whole = manifest_of(data)
    train, held = (whole.part(RowShare(0.0, 0.25, others, 5)) for others in (True, False))
    x, y = values(table)
    chosen = np.concatenate([np.flatnonzero(mask_of(held, group)) + begin for group, begin in begins(whole)])
    others = np.setdiff1d(np.arange(ROWS), chosen)
    assert 0.15 * ROWS < len(chosen) < 0.35 * ROWS
    train = train.resolved(whole.columns, whole.window_bytes, whole.streams)
    model = module()
    optimizer = OPTIMIZER(model.parameters())
    steps = -(-len(others) // BATCH)
    for iteration in range(40):
        epoch, step = divmod(iteration, steps)
        order = order_of(train.layout, 5, epoch)
        slots = FROM_THE_BEGINNING.slots(len(others), steps, step)
        rows = others[order.numbers(order.parts(slots, 0, 1))]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), y[rows, None]).backward()
        optimizer.step()
    assert_close(result.module, model)
    (score,) = [row["mae"] for row in result.history.validations]
    with torch.no_grad():
        expected = (model(x[chosen]) - y[chosen, None]).abs().mean()
    assert score == pytest.approx(float(expected), rel=1e-6)  # the metric counts in float32


def begins(manifest: ScanManifest) -> list[tuple[int, int]]:
    return list(enumerate(manifest.begins[:-1].tolist()))


def mask_of(manifest: ScanManifest, group: int) -> Any:
    assert manifest.selected is not None
    mask = manifest.mask(group)
    whole = np.full(int(manifest.selected.rows[group]), manifest.rows[group] > 0)
    return whole if mask is None else mask


def test_folds_of_a_scan_have_each_row_once(table: Path, spark: Any) -> None:
    shares = [share for fold in folds_of(3, seed=4) for share in fold]
    with dataset(table, spark, 2, filter=[("y", ">", -0.5)]) as data, ExitStack() as stack:
        parts = [stack.enter_context(data.part(share)) for share in shares]
        left, expected = len(data), sorted(y for y in values(table)[1].tolist() if y > -0.5)
        assert left == len(expected)
        held_rows: list[float] = []
        for train, held in zip(parts[::2], parts[1::2], strict=True):
            assert len(train) + len(held) == left
            assert len(held) > 0.2 * left
            held_rows += read_labels(held)
            assert sorted(read_labels(train) + read_labels(held)) == pytest.approx(expected)
        assert sorted(held_rows) == pytest.approx(expected)


def read_labels(data: Dataset) -> list[float]:
    """Return the labels of a Dataset, by its source's order."""
    rows = len(data)
    reader = Reader(manifest_of(data))
    found: list[float] = reader.in_order(0, rows).read()["label"].ravel().tolist()
    reader.close()
    return found


def test_shares_of_the_first_rows_and_shares_without_rows(table: Path, spark: Any) -> None:
    with dataset(table, spark, 1) as data:
        first = data.sample(50, 1)
        expected = sorted(values(table)[1][:50].tolist())
        others, some = share_of(0.3, 1)
        with first.part(others) as train, first.part(some) as held:
            assert sorted(read_labels(train) + read_labels(held)) == pytest.approx(expected)
            of_part = train.sample(5, 1)
            assert read_labels(of_part) == read_labels(train)[:5]
        with pytest.raises(DataError, match="no row is left for training or for validation"):
            trainer(2).fit(data, validation=1e-9)
        for each in (first, of_part):
            each.release()


def test_rows_of_different_lengths_and_of_fixed_ones(tmp_path: Path, spark: Any) -> None:
    generator = np.random.default_rng(1)
    words = [generator.normal(size=int(n)) for n in generator.integers(1, 6, 90)]
    two = pa.array([[n, 2.0 * n] for n in range(90)], pa.list_(pa.float64(), 2))
    columns = {
        "words": [row.tolist() for row in words],
        "pair": two,
        "raw": [bytes([n, 1]) for n in range(90)],
    }
    folder = write(tmp_path / "lengths", "a.parquet", **columns)
    features = ["words", "pair", Column("raw", shape=(2,), dtype="uint8")]

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(()))

        def forward(self, words: Any, pair: Any, raw: Any, *lengths: Any) -> torch.Tensor:
            assert words.shape[1] <= 5
            return words.sum(1) + pair.sum(1) + raw.float().sum(1) + self.bias

    fit = Trainer(Sums(), loss=nn.MSELoss(), optimizer=OPTIMIZER, batch_size=20, progress=False)
    with Dataset.from_parquet(
        folder,
        features=features,
        collate=Pad(has_label=False),
        num_partitions=2,
        streams=2,
        window=30_000,
        spark=spark,
    ) as data:
        found = fit.predict(data, batch_size=7)
    expected = [row.sum() + 3 * n + n + 1 for n, row in enumerate(words)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_partitions_take_steps_by_themselves(table: Path, spark: Any) -> None:
    """Local steps read the rows of a whole round at once."""
    with dataset(table, spark, 2) as data:
        first = trainer(12, local_steps=3).fit(data)
        again = trainer(12, local_steps=3, iterations_per_job=1).fit(data)
    assert_close(first.module, again.module, 0)
    assert sum(first.history.column("samples")) >= ROWS


def test_embedding_variables_learn_from_files(tmp_path: Path, spark: Any) -> None:
    ids, ratings = pairs(0)
    folder = write(tmp_path / "ids", "a.parquet", pair=ids.tolist(), rating=ratings.astype("float64"))
    found = []
    for partitions in (1, 2):
        with Dataset.from_parquet(
            folder,
            features="pair",
            label="rating",
            num_partitions=partitions,
            streams=2,
            window=4000,
            spark=spark,
        ) as data:
            module = keyed(end_when=MaxIteration(6)).fit(data).module
        with torch.no_grad():
            found.append(module(torch.from_numpy(ids)).numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_the_first_rows_are_a_dataset_of_their_own(table: Path, spark: Any) -> None:
    with dataset(table, spark, 2) as data:
        data.store()
        with data.sample(130, 3) as some:
            assert len(some) == 130
            x, _ = values(table)
            with torch.no_grad():
                found = trainer(1).predict(some, module=module())
            np.testing.assert_allclose(found, module()(x[:130]).detach().numpy(), rtol=0, atol=1e-12)
        assert_close(trainer(20).fit(data).module, plain(table, manifest_of(data), 20, True))
