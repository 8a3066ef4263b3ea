"""Clients that want to hold the server: every wait has a clock, and bytes count when they arrive."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("uvicorn")
from support import hostile
from support.hostile import Target
from support.serving import Running, classifier, save

from sparkdl.exceptions import ConfigError
from sparkdl.serve.server import run as server_run
from sparkdl.serve.server.sparing import Sparing

ROW = {"rows": [{"features": [0.5] * 64}]}
SECONDS = 0.4
HOST = b"Host: localhost\r\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "model"
    save(classifier(), path)
    return path


@pytest.fixture(scope="module")
def patient(model: Path) -> Iterator[Running]:
    """A server with the clocks of users, few connections and little room for bodies."""
    with Running(model, copies=1, max_connections=20, max_body=1 << 20, timeout=20) as running:
        yield running


@pytest.fixture
def hasty(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server with fast clocks."""
    monkeypatch.setattr(server_run, "_HEADER_SECONDS", SECONDS)
    with Running(model, copies=1, max_connections=20) as running:
        yield running


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")
    key, cert = str(folder / "key.pem"), str(folder / "certificate.pem")
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["openssl", "req", "-x509", *made, "-out", cert, "-days", "1", *subject]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def connections(running: Running) -> set[Any]:
    return running.server._uvicorn.server_state.connections


def until(condition: Any, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def ask(running: Running, sent: bytes) -> bytes:
    """Return the first line of an answer."""
    with socket.create_connection(("127.0.0.1", running.port), 10) as raw:
        raw.sendall(sent)
        return raw.recv(4096).partition(b"\r\n")[0]


def pipelining(port: int) -> socket.socket:
    """Return a connection that has asked until there was no room, and reads nothing."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", port))
    raw.settimeout(SECONDS / 4)  # what it waits here, it has not read
    try:
        while True:
            raw.send((b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n") * 1000)  # of long answers
    except TimeoutError:
        raw.settimeout(10)
        return raw


# -- answers that nobody reads ------------------------------------------------------------------


def test_a_client_that_does_not_read_is_closed(hasty: Running) -> None:
    with pipelining(hasty.port):
        assert len(connections(hasty)) == 1
        until(lambda: not connections(hasty))
    assert hasty.predict(ROW)[0] == 200


def test_a_client_that_reads_slowly_is_not_closed(hasty: Running) -> None:
    with pipelining(hasty.port) as raw:
        for _ in range(10):  # for longer than twice the time for which one may read nothing
            time.sleep(SECONDS / 4)
            got = 0
            while got < 64 << 10:
                got += len(raw.recv(1 << 14))
        assert len(connections(hasty)) == 1


def test_requests_sent_ahead_leave_turns_to_others(patient: Running) -> None:
    ahead = [socket.create_connection(("127.0.0.1", patient.port), 10) for _ in range(3)]
    begin = time.monotonic()
    for raw in ahead:
        raw.sendall((b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n") * 100)
    assert patient.predict(ROW)[0] == 200
    got = [raw.recv(1 << 20, socket.MSG_DONTWAIT) for raw in ahead]
    answers = sum(some.count(b"HTTP/1.1 200") for some in got)
    assert answers <= (time.monotonic() - begin) / 0.003 + 2 * len(ahead)
    while got[0].count(b"HTTP/1.1 200") < 100:
        got[0] += ahead[0].recv(1 << 20)
    for raw in ahead:
        raw.close()


def test_requests_of_clients_that_have_gone_wait_for_nothing(patient: Running) -> None:
    for n in range(45):
        with socket.create_connection(("127.0.0.1", patient.port), 10) as raw:
            raw.sendall((b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n") * 20)
            raw.recv(1)
        if n % 15 == 14:  # fewer than the server takes at a time
            until(lambda: not connections(patient))
    with socket.create_connection(("127.0.0.1", patient.port), 10) as raw:
        raw.sendall((b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n") * 2)
        got = b""
        while got.count(b"HTTP/1.1 200") < 2:
            got += raw.recv(1 << 16)


def test_clients_that_do_not_read_keep_nobody_out(patient: Running) -> None:
    asked = [pipelining(patient.port) for _ in range(3)]
    idle = [socket.create_connection(("127.0.0.1", patient.port), 10) for _ in range(17)]
    until(lambda: len(connections(patient)) == 20)
    until(lambda: all(connection._owes() for connection in connections(patient)))
    for _ in range(20):
        assert patient.predict(ROW)[0] == 200
    for raw in (*asked, *idle):
        raw.close()


def test_a_flood_closes_strangers_before_clients_that_wait_between_requests(patient: Running) -> None:
    good = patient.connect()
    for _ in range(3):
        good.request("GET", "/health")
        assert good.getresponse().read() == b"ok\n"
        idle = [socket.create_connection(("127.0.0.1", patient.port), 10) for _ in range(60)]
        until(lambda: len(connections(patient)) <= 20)
        for raw in idle:
            raw.close()
    good.close()


# -- TLS ----------------------------------------------------------------------------------------


def test_handshakes_count_and_have_a_clock(
    model: Path, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(server_run, "_HEADER_SECONDS", 1.0)
    trusting = ssl.create_default_context(cafile=certificate[0])
    cert, key = certificate

    def good(port: int) -> bytes:
        raw = socket.create_connection(("127.0.0.1", port), 10)
        with raw, trusting.wrap_socket(raw, server_hostname="localhost") as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n")
            return sock.recv(4096)[:15]

    with Running(model, copies=1, max_connections=20, certificate=cert, key=key) as running:
        before = len(os.listdir("/proc/self/fd"))
        held = [socket.create_connection(("127.0.0.1", running.port), 10) for _ in range(200)]
        for raw in held[::2]:
            raw.send(b"\x16\x03\x01\x02\x00\x01")
        assert good(running.port) == b"HTTP/1.1 200 OK"
        assert len(connections(running)) <= 20
        assert len(os.listdir("/proc/self/fd")) - before - len(held) <= 25
        until(lambda: not connections(running))
        for raw in held:
            raw.close()
        assert ask(running, b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n") == b""
        assert good(running.port) == b"HTTP/1.1 200 OK"
        until(lambda: not connections(running))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_client_that_says_nothing_costs_no_handshake(
    model: Path, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    plain = asyncio.sslproto.SSLProtocol.__init__

    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        begun.append(self)
        plain(self, *args, **kwargs)

    monkeypatch.setattr("asyncio.sslproto.SSLProtocol.__init__", counted)
    with Running(model, copies=1, certificate=certificate[0], key=certificate[1]) as running:
        held = [socket.create_connection(("127.0.0.1", running.port), 10) for _ in range(20)]
        until(lambda: len(connections(running)) == 20)
        assert not begun
        held[0].send(b"\x16\x03\x01\x02\x00\x01")
        until(lambda: len(begun) == 1)
        for raw in held:
            raw.close()


def test_a_certificate_that_cannot_be_used_is_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("x")
    with pytest.raises(ConfigError, match=r"certificate=.*no\.pem"):
        Running(model, copies=1, certificate=str(tmp_path / "no.pem"))


def test_more_connections_than_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, value: limits.append(value))
    server_run._have_files(200)
    server_run._have_files(900)
    assert limits == [(900, 1000)]
    with pytest.raises(ConfigError, match="may open 1000 files: a server needs 1024"):
        server_run._have_files(1024)


def test_the_log_has_few_lines_of_a_kind(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logger, now, sparing = logging.getLogger("hostile"), [0.0], Sparing()
    monkeypatch.setattr("sparkdl.serve.server.sparing.time", SimpleNamespace(monotonic=lambda: now[0]))
    logger.addFilter(sparing)
    for n in range(3):
        for _ in range(1000):
            logger.error("broken %d", n)
        now[0] += 61
    logger.error("another kind")
    logger.removeFilter(sparing)
    assert [record.getMessage() for record in caplog.records] == [
        *["broken 0"] * 10,
        "broken 1 (and 990 more in 61 s)",
        *["broken 1"] * 9,
        "broken 2 (and 990 more in 61 s)",
        *["broken 2"] * 9,
        "another kind",
    ]


# -- bodies -------------------------------------------------------------------------------------


def post(running: Running, header: bytes, body: bytes = b"") -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", running.port), 10)
    raw.sendall(hostile.PREDICT + header + b"\r\n" + body)
    return raw


def test_announced_bytes_take_no_room(patient: Running) -> None:
    held = [post(patient, b"Content-Length: %d\r\n" % (1 << 20)) for _ in range(12)]
    bodies = [iter([json.dumps(ROW).encode()]) for _ in range(20)]
    for body in bodies:  # in pieces: nobody knows how long they will be
        connection = patient.connect()
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/predict", body, kind, encode_chunked=True)  # type: ignore[arg-type]
        assert connection.getresponse().status == 200
        connection.close()
    assert patient.request("GET", "/ready")[0] == 200
    for raw in held:
        raw.close()


def test_the_longest_body_that_is_not_complete_makes_room(patient: Running) -> None:
    nearly = (1 << 20) - 1
    held = [post(patient, b"Content-Length: %d\r\n" % (1 << 20), b" " * (nearly - n)) for n in range(8)]
    last = post(patient, b"Content-Length: 600000\r\n", b" " * 500_000)
    (chosen,), _, _ = select.select(held, [], [], 10)  # which was the longest then: they arrive in any order
    assert chosen.recv(4096).startswith(b"HTTP/1.1 503")
    assert patient.predict(ROW)[0] == 200
    other = 1 if chosen is held[0] else 0
    held[other].sendall(b" " * (other + 1))  # it was not chosen, and is read to its end
    assert held[other].recv(4096).startswith(b"HTTP/1.1 422")
    for raw in (*held, last):
        raw.close()
    until(lambda: not connections(patient))
    assert patient.predict(ROW)[0] == 200


# -- requests that are read in two ways ---------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (hostile.PREDICT + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"POST /predict HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nHost: [::1]evil\r\n\r\n", b"421"),
        (b"GET /health HTTP/1.1\r\nHost: localhost:80.evil\r\n\r\n", b"421"),
        (b"GET /health HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n", b"200"),
        (b"GET /health HTTP/1.1\r\nHost: LOCALHOST\r\n\r\n", b"200"),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 16_200 + b"\r\n\r\n", b"200"),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 16_400 + b"\r\n\r\n", b"431"),
        (b"GET /health?" + b"a" * 16_400 + b" HTTP/1.1\r\n" + HOST + b"\r\n", b"431"),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"a: b\r\n" * 3000 + b"\r\n", b"431"),
    ],
)
def test_a_request_is_read_in_one_way(patient: Running, sent: bytes, status: bytes) -> None:
    assert ask(patient, sent).split()[1] == status  # in one segment


def test_strangers_add_no_series_to_the_metrics(patient: Running) -> None:
    def series() -> set[str]:
        text = patient.request("GET", "/metrics")[2].decode()
        return {line.rpartition(" ")[0] for line in text.splitlines()}

    patient.predict({"rows": []})
    patient.request("POST", "/predict", b"x", {"Content-Type": "a/b"})
    before = series()
    for n in range(50):
        patient.request("GET", f"/{n}?{n}={n}", headers={f"X-{n}": str(n)})
        patient.request(f"M{n}", "/predict")
        patient.request("POST", f"/predict?{n}", b"x", {"Content-Type": f"{n}/b"})
    assert series() == before


# -- all at once --------------------------------------------------------------------------------


def test_all_at_once_beside_a_good_client(model: Path) -> None:
    with Running(model, copies=1, max_connections=40, max_body=1 << 20) as running:
        target, kinds = Target(running.port), list(hostile.ALL.values())
        attacking = threading.Thread(target=lambda: asyncio.run(hostile.attack(target, kinds, 6, 1.0)))
        good = running.connect()
        answers: list[Any] = []
        attacking.start()
        while attacking.is_alive():
            good.request("POST", "/predict", json.dumps(ROW), {"Content-Type": "application/json"})
            answers.append(json.loads(good.getresponse().read()))
        attacking.join()
        good.close()
        assert len(answers) > 5
        assert answers == [answers[0]] * len(answers)
        assert "rows" in answers[0]
        until(lambda: not connections(running))
