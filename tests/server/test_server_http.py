"""The server's answers, over real connections to a thread of this process."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from support.serving import Running, classifier, save, table_classifier

from sparkdl.exceptions import ConfigError
from sparkdl.ml.estimators.model import TorchClassificationModel
from sparkdl.serve import Predictor
from sparkdl.serve.served import ServedModel
from sparkdl.serve.server import arrow_ipc
from sparkdl.serve.server.options import ServerOptions, find_token

pytest.importorskip("uvicorn")
ROW = {"features": [0.5] * 64}
TABLE_ROW = {"age": 30, "member": True, "job": "cook", "day": "2024-01-31"}
TOKEN = "a-token-that-nobody-guesses"
ARROW = {"Content-Type": arrow_ipc.MEDIA_TYPE}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("digits") / "model"
    save(classifier(), path)
    with Running(path, copies=2, max_body=1 << 20, max_rows=64, max_queue=128) as running:
        yield running


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("table") / "model"
    save(table_classifier(), path)
    with Running(path, token=TOKEN, copies=1) as running:
        yield running


def auth(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}


# -- answers ------------------------------------------------------------------------------------


def test_json_by_rows_and_by_columns_is_what_the_module_gives(digits: Running) -> None:
    x = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    status, rows = digits.predict({"rows": [{"features": row.tolist(), "more": "x"} for row in x]})
    assert status == 200
    logits = Predictor.of(classifier())(x)
    for found, expected in zip(rows["rows"], logits, strict=True):
        np.testing.assert_allclose(found["rawPrediction"], expected, atol=1e-5)
        assert found["prediction"] == expected.argmax()
        assert sum(found["probability"]) == pytest.approx(1)
    status, columns = digits.predict({"columns": {"features": x.tolist()}})
    assert status == 200
    assert columns["columns"]["prediction"] == [row["prediction"] for row in rows["rows"]]


def test_a_request_names_the_columns_that_it_wants(table: Running) -> None:
    body = json.dumps({"columns": {"age": [30.0], "member": [True], "job": ["cook"], "day": ["2024-01-01"]}})
    headers = auth()
    status, _, whole = table.request("POST", "/predict", body.encode(), headers)
    assert status == 200, whole
    path = "/predict?outputs=predictedLabel,probability"
    status, _, found = table.request("POST", path, body.encode(), headers)
    assert (status, list(json.loads(found)["columns"])) == (200, ["predictedLabel", "probability"])
    assert json.loads(found)["columns"].items() < json.loads(whole)["columns"].items()
    for wrong in ("logits", "probability,probability", ""):
        status, _, found = table.request("POST", f"/predict?outputs={wrong}", body.encode(), headers)
        assert (status, json.loads(found)["error"]["code"]) == (422, "data-column")


def test_arrow_times_in_a_zone_that_nobody_knows_are_instants(table: Running) -> None:
    """Values are counted in UTC, whatever zone a column names."""
    day = pa.array([1_704_100_000_000_000, None], pa.timestamp("us", "Mars/Phobos"))
    rows = {"age": [30.0, 40.0], "member": [True, False], "job": ["cook", None], "day": day}
    days = pa.array([date(2024, 1, 1), None])
    found = []
    for of_day in (day, days):
        body = arrow_ipc.write_table(pa.table(rows | {"day": of_day}))
        status, _, text = table.request(
            "POST", "/predict", body, auth() | {"Content-Type": arrow_ipc.MEDIA_TYPE}
        )
        assert status == 200, text
        found.append(text)
    assert found[0] == found[1]


def test_tls(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key)]
    command = ["openssl", "req", "-x509", *made, "-out", str(certificate), "-days", "1", *subject]
    subprocess.run(command, check=True, capture_output=True)
    save(classifier(), tmp_path / "model")
    trusting = ssl.create_default_context(cafile=certificate)
    body = json.dumps({"rows": [ROW]})
    with Running(tmp_path / "model", copies=1, certificate=str(certificate), key=str(key)) as running:
        port = running.port
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=trusting, timeout=60)
        connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        assert len(json.loads(answer.read())["rows"]) == 1
        connection.close()
        stranger = http.client.HTTPSConnection("127.0.0.1", port, timeout=60)
        with pytest.raises(ssl.SSLCertVerificationError):  # only who trusts the certificate
            stranger.request("GET", "/health")
        with pytest.raises((http.client.HTTPException, OSError)):
            running.request("GET", "/health")  # no plain HTTP beside it


def test_arrow_streams(digits: Running) -> None:
    x = np.ones((5, 64))
    for kind in (pa.list_(pa.float64()), pa.list_(pa.float64(), 64), pa.large_list(pa.float32())):
        body = arrow_ipc.write_table(pa.table({"features": pa.array(x.tolist(), kind)}))
        status, headers, answer = digits.request("POST", "/predict", body, ARROW)
        assert status == 200
        assert headers["Content-Type"] == arrow_ipc.MEDIA_TYPE
        found = pa.ipc.open_stream(answer).read_all()
        assert found.column_names == ["rawPrediction", "probability", "prediction"]
        assert found.num_rows == 5
    status, headers, answer = digits.request(
        "POST", "/predict", body, {**ARROW, "Accept": "application/json"}
    )
    assert len(json.loads(answer)["columns"]["prediction"]) == 5


def test_a_table_with_nulls_and_dates(table: Running) -> None:
    nulls = dict.fromkeys(TABLE_ROW)
    status, _, text = table.request(
        "POST", "/predict", json.dumps({"rows": [TABLE_ROW, nulls]}).encode(), auth()
    )
    assert status == 200
    expected = ServedModel(table_classifier())(pa.Table.from_pylist([TABLE_ROW, nulls])).to_pylist()
    for found, row in zip(json.loads(text)["rows"], expected, strict=True):
        assert found["predictedLabel"] == row["predictedLabel"]
        assert found["probability"] == pytest.approx(row["probability"])


def test_what_the_model_takes_and_the_probes(digits: Running) -> None:
    _, _, text = digits.request("GET", "/model")
    assert json.loads(text)["inputs"] == {"features": "float32[64]"}
    for path in ("/health", "/ready"):
        assert digits.request("GET", path)[0] == 200
    assert digits.predict({"rows": [ROW]})[0] == 200
    assert digits.sample('sparkdl_requests_total{status="200"}') >= 1
    assert digits.sample("sparkdl_rows_total") >= 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"columns": {"features": [' + b"[" * 900 + b"]" * 900 + b"]}}", "nested too deeply"),
        (b'{"columns": {"features": [[' + b"9" * 5000 + b"]]}}", "not JSON: Exceeds"),
        (b'{"columns": {"features": [[' + b"9" * 500 + b"]]}}", "too large"),
        (b'{"columns": {"features": [[NaN]]}}', "NaN is no JSON"),
        (b'{"columns": {"features": [[-1e999]]}}', "-1e999 is beyond the range of a double"),
        (b'{"rows": [' + b"{}," * 500 + b"{}]}", "more objects than 64 rows"),
        (b'{"rows": [{"features": 1, "features": 2}]}', "there twice"),
        ([], "a list of 0"),
        ({"rows": []}, "no rows"),
        ({"rows": [ROW] * 65}, "65 rows: send at most 64"),
        ({"rows": [ROW, {}]}, "row 1 has"),
        ({"rows": [{"feature": []}]}, "column 'features' is missing"),
        (b'{"columns": {"\\ud800": [1]}}', "column 'features' is missing"),
        ({"columns": {"features": ["\ud800"]}}, "column 'features'"),
        ({"columns": {"features": 3}}, "expected a list"),
        ({"columns": {"features": [[]], "b": [1, 2]}}, "different numbers of rows"),
        ({"rows": [ROW, {"features": "x"}]}, "column 'features', row 1: 'x' is a string"),
        ({"rows": [ROW, {"features": None}]}, "column 'features', row 1: null"),
        ({"rows": [ROW, {"features": [1] * 63}]}, "column 'features', row 1: array of 63"),
        ({"rows": [{"features": [[{}]]}]}, "an object is no value"),
        ({"rows": [{"features": ["a"] * 64}]}, "expected float32"),
    ],
)
def test_bodies_that_are_refused(digits: Running, body: Any, says: str) -> None:
    status, error = digits.predict(body, **{"Content-Type": "application/json"})
    assert status == 422
    assert says in error["message"]
    assert digits.request("GET", "/health")[0] == 200


def test_table_values_that_are_refused(table: Running) -> None:
    for change, says in (({"day": "soon"}, "column 'day', row 0: 'soon'"), ({"age": "old"}, "column 'age'")):
        body = json.dumps({"rows": [TABLE_ROW | change]}).encode()
        status, _, text = table.request("POST", "/predict", body, auth())
        assert status == 422
        assert says in json.loads(text)["error"]["message"]


def compressed() -> bytes:
    sink = pa.BufferOutputStream()
    data = pa.table({"features": [[0.0] * 64] * 60})
    with pa.ipc.new_stream(sink, data.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(data)
    return bytes(sink.getvalue())


def absurd() -> Iterator[bytes]:
    """Yield streams whose lengths and offsets point anywhere."""
    good = arrow_ipc.write_table(pa.table({"features": [[0.0] * 64, [1.0] * 64]}))
    rng = np.random.default_rng(1)
    for _ in range(300):
        bad = bytearray(good)
        for at in rng.integers(0, len(good), 3):
            bad[at] = rng.integers(256)
        yield bytes(bad)
    yield from (good[:n] for n in range(0, len(good), 97))
    yield good[:8] + b"\xff" * 16 + good[24:]


def test_arrow_that_is_refused(digits: Running) -> None:
    rows = pa.table({"features": pa.nulls(1000)})
    dictionary = pa.table({"features": pa.array(["a" * 100] * 9).dictionary_encode()})
    runs = pa.array(["a"] * 9)
    encoded = pa.RunEndEncodedArray.from_arrays(pa.array([9], pa.int32()), runs[:1])
    for body, says in (
        (b"", "no Arrow stream"),
        (os.urandom(500), "no Arrow stream"),
        (compressed(), "compressed"),
        (arrow_ipc.write_table(rows), "send at most 64"),
        (arrow_ipc.write_table(dictionary), "dictionaries"),
        (arrow_ipc.write_table(pa.table({"features": encoded})), "has type run_end_encoded"),
        (arrow_ipc.write_table(pa.table({"features": [{"a": 1}]})), "has type struct"),
    ):
        status, _, text = digits.request("POST", "/predict", body, ARROW)
        assert status == 422
        assert says in json.loads(text)["error"]["message"]


def test_damaged_arrow_harms_nobody(digits: Running) -> None:
    seen = {digits.request("POST", "/predict", body, ARROW)[0] for body in absurd()}
    assert seen <= {200, 422}  # a changed value is a value
    assert digits.predict({"rows": [ROW]})[0] == 200


# -- limits -------------------------------------------------------------------------------------


def test_long_bodies_are_refused_by_length_and_in_pieces(digits: Running) -> None:
    kind = {"Content-Type": "application/json"}
    assert digits.request("POST", "/predict", b" " * ((1 << 20) + 1), kind)[0] == 413
    connection = digits.connect()
    pieces = (b" " * 65536 for _ in range(17))
    connection.request("POST", "/predict", pieces, kind, encode_chunked=True)  # type: ignore[arg-type]
    assert connection.getresponse().status == 413
    connection.close()
    status, _, _ = digits.request("POST", "/predict", b"x", {**kind, "Content-Encoding": "gzip"})
    assert status == 415
    assert digits.request("POST", "/predict", b"x", {"Content-Type": "application/x-pickle"})[0] == 415


def test_a_length_that_no_machine_has(digits: Running) -> None:
    with socket.create_connection(("127.0.0.1", digits.port), 10) as raw:
        raw.sendall(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Expect: 100-continue\r\nContent-Length: " + b"9" * 20 + b"\r\n\r\n"
        )
        assert b" 413 " in raw.recv(4096).partition(b"\r\n")[0] + b" "


def test_garbage_and_long_headers_end_the_connection(digits: Running) -> None:
    for sent in (b"\x16\x03\x01\x02\x00garbage\r\n\r\n", b"GET /" + b"a" * 40_000, b"\0" * 40_000):
        with socket.create_connection(("127.0.0.1", digits.port), 10) as raw:
            raw.sendall(sent)
            received = b""
            while piece := raw.recv(4096):
                received += piece
            assert received.startswith(b"HTTP/1.1 4")
    assert digits.request("GET", "/health")[0] == 200


@pytest.mark.parametrize(
    "path", ["/", "/predict/", "/../predict", "/..%2f..%2fetc/passwd", "//predict", "/model/..", "/static/x"]
)
def test_there_are_no_other_paths(digits: Running, path: str) -> None:
    status, _, body = digits.request("GET", path)
    assert (status, json.loads(body)["error"]["code"]) in ((404, "path"), (405, "method"))
    status, headers, body = digits.request("GET", "/predict")
    assert (status, headers["Allow"], json.loads(body)["error"]["code"]) == (405, "POST", "method")


def test_slow_bodies_time_out(tmp_path: Path) -> None:
    save(classifier(), tmp_path / "model")
    with Running(tmp_path / "model", copies=1, timeout=0.3) as running:
        with socket.create_connection(("127.0.0.1", running.port), 10) as raw:
            raw.sendall(
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 100\r\n\r\n{"
            )
            assert b" 408 " in raw.recv(4096)
        assert running.predict({"rows": [ROW]})[0] == 200


def test_slow_headers_time_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkdl.serve.server.run._HEADER_SECONDS", 0.3)
    save(classifier(), tmp_path / "model")
    with Running(tmp_path / "model", copies=1) as running:
        for first in (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", running.port), 10) as raw:
                raw.sendall(first)
                if first:
                    assert b" 200 " in raw.recv(4096)
                started = time.monotonic()
                try:
                    while time.monotonic() - started < 5:
                        raw.sendall(b"x")
                        time.sleep(0.1)
                    pytest.fail("the connection stays")
                except OSError:
                    pass


def test_many_idle_connections_keep_nobody_out(tmp_path: Path) -> None:
    save(classifier(), tmp_path / "model")
    with Running(tmp_path / "model", copies=1, max_connections=20) as running:
        idle = [socket.create_connection(("127.0.0.1", running.port), 10) for _ in range(200)]
        assert running.predict({"rows": [ROW]})[0] == 200
        assert len(running.server._uvicorn.server_state.connections) <= 21
        for connection in idle:
            connection.close()


def test_a_full_queue_answers_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, go = threading.Event(), threading.Event()
    run = ServedModel.run

    def slow(self: Any, requests: Any) -> Any:
        busy.set()
        assert go.wait(30)
        return run(self, requests)

    save(classifier(), tmp_path / "model")
    with Running(tmp_path / "model", copies=1, max_rows=2, max_queue=2) as running:
        monkeypatch.setattr(ServedModel, "run", slow)
        with ThreadPoolExecutor(4) as pool:
            first = pool.submit(running.predict, {"rows": [ROW]})
            assert busy.wait(30)
            second = pool.submit(running.predict, {"rows": [ROW, ROW]})
            while running.server.service.batcher.rows_waiting < 2:
                time.sleep(0.01)
            status, headers, _ = running.request("POST", "/predict", {"rows": [ROW]})
            assert (status, headers["Retry-After"]) == (503, "1")
            assert running.request("GET", "/ready")[0] == 503
            go.set()
            assert [first.result()[0], second.result()[0]] == [200, 200]
        assert running.request("GET", "/ready")[0] == 200


# -- who may ask --------------------------------------------------------------------------------


def test_the_token_is_asked_for_before_the_body(table: Running) -> None:
    body = json.dumps({"rows": [TABLE_ROW]}).encode()
    assert table.request("POST", "/predict", body, auth())[0] == 200
    for headers in ({}, auth("wrong"), auth(TOKEN + "x"), auth(TOKEN[:-1]), {"Authorization": TOKEN}):
        status, answer, _ = table.request("POST", "/predict", body, {**headers})
        assert status == 401
        assert answer["WWW-Authenticate"] == "Bearer"
        assert answer["Connection"] == "close"
    assert table.request("GET", "/metrics")[0] == table.request("GET", "/nothing")[0] == 401
    assert table.request("GET", "/health")[0] == 200
    with socket.create_connection(("127.0.0.1", table.port), 10) as raw:  # the body is not waited for
        raw.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert b" 401 " in raw.recv(4096)


def test_a_server_without_a_token_answers_to_this_machines_names_alone(digits: Running) -> None:
    assert digits.request("GET", "/health", headers={"Host": "localhost:80"})[0] == 200
    assert digits.request("GET", "/health", headers={"Host": "evil.example"})[0] == 421


def test_other_addresses_need_a_token_or_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"host='0.0.0.0' is reached from other machines"):
        ServerOptions(host="0.0.0.0")
    assert ServerOptions(host="0.0.0.0", open=True).token is None
    assert ServerOptions(host="::1").is_local
    with pytest.raises(ConfigError, match="5 characters"):
        ServerOptions(token="short")
    with pytest.raises(ConfigError, match="--no-token lets anyone in, and there is a token"):
        ServerOptions(token=TOKEN, open=True)
    with pytest.raises(ConfigError, match="spaces or characters"):
        ServerOptions(token="a token with spaces in it")
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        find_token(str(file))
    file.chmod(0o600)
    assert find_token(str(file)) == TOKEN
    monkeypatch.setenv("SPARKDL_SERVE_TOKEN", TOKEN)
    assert find_token(None) == TOKEN
    with pytest.raises(ConfigError, match="cannot be read"):
        find_token(str(tmp_path / "nothing"))
    os.mkfifo(tmp_path / "pipe", 0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        find_token(str(tmp_path / "pipe"))


# -- batches, versions, the end -----------------------------------------------------------------


def test_requests_share_passes_and_copies_share_weights(digits: Running) -> None:
    before = digits.sample("sparkdl_pass_rows_count"), digits.sample("sparkdl_rows_total")
    with ThreadPoolExecutor(16) as pool:
        bodies = [{"rows": [{"features": [float(n)] * 64}]} for n in range(64)]
        found = list(pool.map(digits.predict, bodies))
    assert {status for status, _ in found} == {200}
    one = [digits.predict(body)[1]["rows"][0] for body in bodies[:8]]
    for (_, together), alone in zip(found, one, strict=False):
        assert together["rows"][0]["rawPrediction"] == pytest.approx(alone["rawPrediction"], abs=1e-5)
    assert digits.sample("sparkdl_rows_total") - before[1] == 72
    assert digits.sample("sparkdl_pass_rows_count") - before[0] <= 72
    first, second = digits.server.service.versions.current.copies
    assert first._module is not second._module
    for a, b in zip(first._module.parameters(), second._module.parameters(), strict=True):
        assert a is b


class Picky(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x)


def test_a_request_that_fails_harms_none_in_its_pass() -> None:
    model = TorchClassificationModel.from_module(Picky(), example=np.zeros(2, np.int64), featuresCol="x")
    served = ServedModel(model)
    from sparkdl.serve.server.batching import Batcher

    class Group:
        copies = (served,)

    batcher = Batcher(threads=1, torch_threads=1, max_rows=64, max_queue=64, wait=0.2)
    group = Group()
    rows = [served.prepare(pa.table({"x": [n]})) for n in (1, 99, 3)]
    futures = [batcher.submit(group, each) for each in rows]
    with pytest.raises(Exception, match="layer 'table'"):
        futures[1].result(10)
    assert futures[0].result(10).num_rows == futures[2].result(10).num_rows == 1
    batcher.close()


def test_a_new_version_loses_no_request(tmp_path: Path) -> None:
    path = tmp_path / "model"
    save(classifier(0), path)
    with Running(path, copies=2, watch=0.1) as running:
        first = running.server.service.versions.current.model.version
        answers: list[tuple[int, str]] = []
        done = threading.Event()

        def ask() -> None:
            while not done.is_set():
                status, headers, _ = running.request("POST", "/predict", {"rows": [ROW]})
                answers.append((status, headers["X-Model-Version"]))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        save(classifier(1), tmp_path / "next")
        (path).rename(tmp_path / ".model.previous")
        (tmp_path / "next").rename(path)
        until = time.monotonic() + 30
        while running.server.service.versions.current.model.version == first and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.2)
        done.set()
        for thread in threads:
            thread.join()
        assert {status for status, _ in answers} == {200}
        assert len({version for _, version in answers}) == 2
        (path / "metadata" / "part-00000.txt").write_text("{}")  # what cannot be read changes nothing
        until = time.monotonic() + 30
        while not running.sample('sparkdl_reloads_total{result="failed"}') and time.monotonic() < until:
            time.sleep(0.05)
        assert running.predict({"rows": [ROW]})[0] == 200


def test_the_command_serves_reloads_at_a_signal_and_finishes(tmp_path: Path) -> None:
    save(classifier(0), tmp_path / "model")
    command = [
        sys.executable,
        "-m",
        "sparkdl",
        "serve",
        str(tmp_path / "model"),
        "--port",
        "0",
        "--copies",
        "1",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "serving TorchClassificationModel" in line
        port = int(line.partition("127.0.0.1:")[2].partition(",")[0])
        save(classifier(1), tmp_path / "model")
        process.send_signal(signal.SIGHUP)
        assert ", was " in process.stderr.readline()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        body = json.dumps({"rows": [ROW]}).encode()
        connection.putrequest("POST", "/predict")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:5])
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)  # in the middle of a request
        time.sleep(0.5)
        connection.send(body[5:])
        assert connection.getresponse().status == 200
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
