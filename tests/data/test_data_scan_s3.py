"""Scans of an object store: a server that speaks S3, one that is overloaded, and one that is gone."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from pyarrow import fs, parquet

from sparkdl import Column, Dataset
from sparkdl.data.scan.files import File
from sparkdl.data.scan.manifest import ScanManifest
from sparkdl.data.scan.storage import checked_storage, file_system, of_delta, of_iceberg
from sparkdl.data.scan.tasks import PlaceManifest
from sparkdl.data.store.partition import Token
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.train import Checkpoint, EveryEpoch, MaxEpoch, Trainer
from sparkdl.wire import frame

pytest.importorskip("moto.server")

SECRET, ROWS = "a-secret-of-executors", 600


class Overloaded:
    """Answers every twentieth request with "slow down", and the others as S3 does: each costs a wait."""

    def __init__(self, app: Any) -> None:
        self._app, self._lock = app, threading.Lock()
        self.calm, self.asked, self.refused = True, 0, 0

    def __call__(self, environ: Any, start: Any) -> Any:
        with self._lock:
            self.asked += 1
            refuses = not self.calm and self.asked % 20 == 0
            self.refused += refuses
        if not refuses:
            return self._app(environ, start)
        start("503 Slow Down", [("Content-Type", "application/xml")])
        return [b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Slow down</Message></Error>"]


class Store:
    """A server with a bucket of rows in four files."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.app = Overloaded(DomainDispatcherApplication(create_backend_app))
        self._server = make_server("127.0.0.1", 0, self.app, threaded=True)
        self.options = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
            "TIMEOUT": "5",
        }
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.system = fs.S3FileSystem(
            access_key="key",
            secret_key=SECRET,
            region="us-east-1",
            scheme="http",
            endpoint_override=f"127.0.0.1:{self._server.server_port}",
            allow_bucket_creation=True,
        )
        self.system.create_dir("bucket")

    def write(self, folder: str, system: Any) -> None:
        system.create_dir(folder, recursive=True)
        for file in range(4):
            n = np.arange(file * 150, (file + 1) * 150)
            rows = pa.table({"x": (n % 7).astype(np.float32), "y": (n % 5).astype(np.float32)})
            parquet.write_table(rows, f"{folder}/{file}.parquet", filesystem=system, row_group_size=75)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    made = Store()
    made.write("bucket/table", made.system)
    yield made
    made.close()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, store: Store) -> str:
    """The same rows in files of this machine."""
    path = str(tmp_path_factory.mktemp("local") / "table")
    store.write(path, fs.LocalFileSystem())
    return path


@cache
def expected_of(spark: Any, table: str) -> list[torch.Tensor]:
    """Return the weights of a fit on files of this machine, for all tests."""
    return trained(spark, table)


def trained(spark: Any, path: str, checkpoints: Path | None = None, **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    module = torch.nn.Linear(1, 1)
    with Dataset.from_parquet(
        path, features=Column("x", shape=(1,)), label="y", num_partitions=2, spark=spark, **options
    ) as data:
        trainer = Trainer(
            module,
            loss=lambda out, y: ((out[:, 0] - y) ** 2).mean(),
            optimizer=partial(torch.optim.SGD, lr=0.01),
            batch_size=50,
            seed=1,
            end_when=MaxEpoch(2),
            progress=False,
            hooks=[] if checkpoints is None else [Checkpoint(str(checkpoints), EveryEpoch())],
        )
        found = trainer.fit(data)
        shown = repr(data) + data._repr_html_() + repr(found) + json.dumps(found.history, default=str)
        assert SECRET not in shown
    return list(found.module.parameters())


@pytest.mark.whole
def test_a_fit_on_s3_is_that_on_the_same_files(
    spark: Any, store: Store, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    expected = expected_of(spark, table)
    for path in ("s3://bucket/table", "s3a://bucket/table/"):
        found = trained(spark, path, storage_options=store.options)
        assert all(map(torch.equal, found, expected))
    assert SECRET not in caplog.text


def test_no_checkpoint_and_no_token_has_the_secret(spark: Any, store: Store, tmp_path: Path) -> None:
    trained(spark, "s3://bucket/table", tmp_path, storage_options=store.options)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not any(SECRET.encode() in path.read_bytes() for path in written)


def test_executors_keep_options_in_a_private_file_beside_the_manifest(store: Store) -> None:
    files = (File("bucket/table/0.parquet", 1, 1),)
    manifest = ScanManifest("s3://bucket/table", files, *(np.array([n]) for n in (0, 0, 40))).resolved(
        (), 1, 1
    )

    class Sent:
        def read(self, *, once: bool = False) -> bytes:
            return frame.join(manifest.pack())

    place = PlaceManifest("a-store-of-a-test", Sent(), 1, store.options)
    assert SECRET not in repr(place)
    (data,) = place(0, iter([]))
    assert SECRET.encode() not in data
    folder = Path(Token.from_frame(frame.unpack(data)).folder)
    try:
        assert (folder / "reading.json").stat().st_mode & 0o077 == 0
        assert json.loads((folder / "reading.json").read_text())["storage"] == store.options
        assert SECRET.encode() not in (folder / "scan.bin").read_bytes()
    finally:
        shutil.rmtree(folder)


@pytest.mark.whole
def test_a_store_that_is_overloaded_is_asked_again(spark: Any, store: Store, table: str) -> None:
    expected = expected_of(spark, table)
    store.app.calm, store.app.refused = False, 0
    try:
        found = trained(spark, "s3://bucket/table", storage_options=store.options)
    finally:
        store.app.calm = True
    assert store.app.refused > 5
    assert all(map(torch.equal, found, expected))


def test_delta_tables_and_filters(spark: Any, store: Store) -> None:
    deltalake = pytest.importorskip("deltalake")
    rows = pa.table({"x": np.arange(100, dtype=np.float32), "y": np.arange(100) % 3})
    deltalake.write_deltalake(
        "s3://bucket/delta",
        rows,
        storage_options=of_delta(store.options) | {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"},
    )
    with Dataset.from_delta(
        "s3://bucket/delta",
        features="x",
        filter=pc.field("y") == 1,
        storage_options=store.options,
        spark=spark,
    ) as data:
        assert len(data) == 33
        assert data.peek()["features"].tolist() == [1.0, 4.0]


def test_iceberg_tables(
    spark: Any,
    store: Store,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog import load_catalog
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.utils.concurrent import ExecutorFactory

    caplog.set_level(logging.DEBUG)
    with ThreadPoolExecutor(1) as threads:  # pyiceberg's own live as long as the process
        monkeypatch.setattr(ExecutorFactory, "get_or_create", staticmethod(lambda: threads))
        catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "s3://bucket/ice"}
        made = load_catalog(None, **catalog, **of_iceberg(store.options))
        assert isinstance(made._load_file_io(), PyArrowFileIO)
        made.create_namespace("shop")
        rows = pa.table({"x": np.arange(100, dtype=np.float32), "y": np.arange(100) % 3})
        table = made.create_table("shop.sales", rows.schema)
        table.append(rows)
        table.delete("x = 4")
    options = {"features": "x", "filter": pc.field("y") == 1, "spark": spark}
    for name, given in ((table.metadata_location, None), ("shop.sales", catalog)):
        with Dataset.from_iceberg(name, catalog=given, storage_options=store.options, **options) as data:
            assert len(data) == 32
            assert data.peek()["features"].tolist() == [1.0, 7.0]
            assert SECRET not in repr(data) + data._repr_html_()
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        (
            "s3://bucket/nothing",
            {},
            "nothing: the executor on .* cannot read it: there is no such",
        ),
        (
            "s3://bucket/table",
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            "s3://bucket/table: the executor on",
        ),
    ],
)
def test_what_cannot_be_read_is_named(
    spark: Any, store: Store, path: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        Dataset.from_parquet(path, features="x", storage_options=store.options | options, spark=spark)
    assert SECRET not in str(caught.value)


def test_a_store_of_google_is_asked_for_a_minute() -> None:
    system, path = file_system("gs://anonymous@bucket/folder/table", {})
    assert path == "bucket/folder/table"
    minute = timedelta(seconds=60)
    assert system == fs.GcsFileSystem(anonymous=True, default_bucket_location="", retry_time_limit=minute)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("s3://me:a-secret-of-executors@bucket/t", None, "a path with credentials, which would be seen"),
        ("/t", {"AWS_REGION": "x"}, "storage_options are for s3:// URLs, not for /t"),
        ("s3://b/t", "key", "expected a dict, got a str"),
        ("s3://b/t", {"aws_secret": SECRET}, "'aws_secret' is not known; expected some of AWS_ACCESS_KEY_ID"),
        ("s3://b/t", {"AWS_REGION": 1}, "AWS_REGION: expected a text, got a int"),
        (
            "s3://b/t",
            {"AWS_SECRET_ACCESS_KEY": SECRET},
            "AWS_ACCESS_KEY_ID and AWS_SECRET.* together",
        ),
        (
            "s3://b/t",
            {"AWS_ENDPOINT_URL": "host:9000"},
            "AWS_ENDPOINT_URL: expected a URL that",
        ),
        ("s3://b/t", {"TIMEOUT": "soon"}, "TIMEOUT: expected a number of seconds"),
    ],
)
def test_options_that_cannot_be_are_refused_without_their_values(
    path: str, options: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        checked_storage(options, [path])
    assert SECRET not in str(caught.value)
