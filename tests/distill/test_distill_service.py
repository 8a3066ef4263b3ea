"""Teachers behind servers that come and go: the client over real connections, and fits with it."""

from __future__ import annotations

import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from support.models import mlp
from support.serving import Running, classifier, save
from torch import nn

from sparkdl import Dataset
from sparkdl.distill import Distiller, Service
from sparkdl.distill.client import Client, addresses_of, from_arrow
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.train import Hook, MaxIteration

pytest.importorskip("uvicorn")
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 64)).astype(np.float32)
Y = RANDOM.integers(0, 10, 40)
TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("teacher") / "model"
    save(classifier(), path)
    return path


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[str]:
    with Running(path, copies=1) as running:
        yield f"localhost:{running.port}"


def nobody() -> str:
    """Return an address at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def net(classes: int = 10) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, classes))


def distiller(teachers: Any, student: nn.Module | None = None, **options: Any) -> Distiller:
    defaults: dict[str, Any] = {"optimizer": partial(torch.optim.SGD, lr=0.5), "batch_size": 20}
    defaults |= {"end_when": MaxIteration(4), "progress": False}
    return Distiller(net() if student is None else student, teachers, **defaults | options)


def rows(spark: Any, partitions: int = 2, **label: Any) -> Dataset:
    return Dataset.from_numpy(X, label or Y, spark=spark, num_partitions=partitions)


def weights(module: nn.Module) -> list[np.ndarray]:
    return [value.numpy() for value in module.state_dict().values()]


# -- the client ---------------------------------------------------------------------------------


def test_answers_are_those_of_the_module(server: str) -> None:
    client = pickle.loads(pickle.dumps(Client([server])))
    found = client.predict({"features": X}, "rawPrediction")
    with torch.no_grad():
        expected = mlp(seed=0).eval()(torch.from_numpy(X))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert client.model()["inputs"] == {"features": "float32[64]"}


def test_requests_go_round_and_a_server_that_dies_is_left_out(path: Path, server: str) -> None:
    with Running(path, copies=1) as other:
        client = Client([server, f"localhost:{other.port}"], refresh=600)
        for _ in range(6):
            client.predict({"features": X[:3]}, "prediction")
        assert other.sample("sparkdl_requests_total") == 3
    asked = [client.predict({"features": X[:3]}, "prediction") for _ in range(4)]
    assert all(one is not None for one in asked)


def test_addresses_are_read_again(tmp_path: Path, server: str) -> None:
    file = tmp_path / "servers"
    file.write_text(f"# those of today\n{nobody()}\n")
    client = Client(str(file), refresh=0.05, patience=30)
    begun = threading.Timer(0.3, file.write_text, [f"http://{server}/  # a new one\n"])
    begun.start()
    assert client.predict({"features": X}, "prediction") is not None
    begun.join()
    file.unlink()  # the addresses of before stay
    time.sleep(0.1)
    assert client.predict({"features": X}, "prediction") is not None
    listed = [[nobody()], [server]]
    client = Client(lambda: listed.pop(0) if len(listed) > 1 else listed[0], refresh=0.05)
    assert client.predict({"features": X}, "prediction") is not None


def test_nobody_answers() -> None:
    gone = nobody()
    with pytest.raises(ModelError, match=f"no server answers.*{gone}.*sparkdl serve") as raised:
        Client([gone], patience=0).predict({"features": X}, "prediction")
    assert raised.value.code == "model-teacher"
    assert Client([gone], patience=None).predict({"features": X}, "prediction") is None
    started = time.monotonic()
    with pytest.raises(ModelError, match="no server answers"):
        Client([gone], patience=0.5).model()
    assert 0.3 < time.monotonic() - started < 5
    with pytest.raises(ModelError, match="the addresses cannot be read"):
        Client("/no/such/file", patience=0).model()


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (b"Content-Length: 70000\r\n\r\n" + 70000 * b" ", "more than 65,536 bytes"),
        (b"\r\n" + 70000 * b" ", "more than 65,536 bytes"),  # of a length that nobody has said
        (b"Content-Length: 100\r\n\r\n{}", "IncompleteRead"),
    ],
)
def test_an_answer_that_is_too_long_or_too_short(answer: bytes, match: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with listening.accept()[0] as taken:
                taken.recv(1 << 16)
                with suppress(OSError):  # the client may have read enough
                    taken.sendall(b"HTTP/1.1 200 OK\r\n" + answer)

        with ThreadPoolExecutor() as pool:
            served = pool.submit(serve)
            with pytest.raises(ModelError, match=match):
                Client([f"127.0.0.1:{listening.getsockname()[1]}"], patience=0).model()
            served.result(10)


def test_answers_of_different_lengths_are_refused() -> None:
    rows = pa.chunked_array([pa.array([[1.0, 2.0], [3.0, 4.0, 5.0, 6.0]])])
    with pytest.raises(ValueError, match="different lengths"):  # of as many values as two rows of three have
        from_arrow(rows)
    assert from_arrow(rows.slice(1)).tolist() == [[3.0, 4.0, 5.0, 6.0]]


def test_what_a_server_refuses_is_an_error(server: str, path: Path) -> None:
    with pytest.raises(ModelError, match=r"status 422.*column 'features' is missing"):
        Client([server]).predict({"x": X}, "prediction")
    with pytest.raises(ModelError, match="no sound column 'odds'"):
        Client([server]).predict({"features": X}, "odds")
    with Running(path, copies=1, token=TOKEN) as guarded:
        address = f"localhost:{guarded.port}"
        with pytest.raises(ModelError, match="status 401"):
            Client([address]).predict({"features": X}, "prediction")
        assert Client([address], TOKEN).predict({"features": X}, "prediction") is not None
    assert TOKEN not in repr(Service([address], token=TOKEN))


@pytest.mark.parametrize("address", ["", "ftp://host:1", "host:port", "http://", 3])
def test_what_is_no_address(address: Any) -> None:
    with pytest.raises(ConfigError, match="no address"):
        addresses_of([address])


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "hope"},
        {"patience": 0},
        {"timeout": "1 s"},
        {"rows_per_request": 0},
        {"inputs": ["features"]},
        {"addresses": [":"]},
        {"weight": -1},
    ],
)
def test_options_that_cannot_work(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Service(**{"addresses": ["localhost:1"], **options})


# -- fits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["all", None])
def test_a_service_teaches_as_its_module(spark: Any, server: str, keep: Any) -> None:
    services = [Service([server], rows_per_request=7), Service([server], {"features": "x"})]
    with rows(spark) as data, rows(spark, label=Y, x=X) as named:
        found = [
            distiller(given, keep=keep).fit(used)
            for given, used in ((services[0], data), (services[1], named), (mlp(seed=0), data))
        ]
    for one, other in zip(weights(found[0].module), weights(found[2].module), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3 if keep else 1e-5)  # logits may be rounded otherwise
    for one, other in zip(weights(found[0].module), weights(found[1].module), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3 if keep else 1e-5)
    assert found[0].history[-1]["extras"]["answered"] == 1


def test_kept_answers_give_the_same_bits_after_the_service_has_gone(spark: Any, path: Path) -> None:
    with Running(path, copies=1) as running:
        service = Service([f"localhost:{running.port}"], policy="fail")

        class End(Hook):
            def on_iteration_end(self, run: Any) -> None:
                if run.state.iteration == 2:
                    running.server.stop()

        hooks = [[], [End()]]
        with rows(spark) as data:
            found = [distiller(service, hooks=hook, iterations_per_job=1).fit(data).module for hook in hooks]
    for one, other in zip(*map(weights, found), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_student_goes_on_without(spark: Any, path: Path) -> None:
    with Running(path, copies=1) as running:
        service = Service([f"localhost:{running.port}"], policy="skip", refresh=0.05)

        class End(Hook):
            def on_iteration_end(self, run: Any) -> None:
                if run.state.iteration == 2:
                    running.server.stop()
                    running._thread.join()

        with rows(spark) as data:
            distill = distiller(service, keep=None, hooks=[End()], iterations_per_job=1)
            history = distill.fit(data).history
    assert [row["extras"]["answered"] for row in history] == [1, 1, 0, 0]
    last = history[-1]
    assert last["loss"] == pytest.approx(last["extras"]["hard"])


@pytest.mark.parametrize("keep", ["all", 3, None])
def test_a_student_begins_without(spark: Any, keep: Any) -> None:
    with rows(spark) as data:
        found = distiller(Service([nobody()], policy="skip"), keep=keep).fit(data)
    assert [row["extras"]["answered"] for row in found.history] == [0, 0, 0, 0]
    expected = torch.nn.functional.cross_entropy(net()(torch.from_numpy(X)), torch.from_numpy(Y))
    assert found.history[0]["loss"] == pytest.approx(float(expected.detach()), rel=0.2)


def test_what_does_not_fit_is_said_first(spark: Any, server: str) -> None:
    cases: list[tuple[Service, Any, str]] = [
        (Service([nobody()], policy="fail"), None, "no server answers"),
        (Service([server], {"pixels": "x"}), None, "has no column 'pixels'; it takes features"),
        (Service([server], output="odds"), None, "gives .*, prediction, and not 'odds'"),
        (Service([server]), net(7), r"gives \[10\] values per row, the student \[7\]"),
    ]
    for service, student, says in cases:
        with rows(spark, label=Y, x=X) as data, pytest.raises((ConfigError, ModelError), match=says):
            distiller(service, student).fit(data)


# -- processes ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.jvm
@pytest.mark.parametrize("policy", ["wait", "skip"])
def test_a_server_is_killed_and_another_takes_over(
    spark: Any, path: Path, tmp_path: Path, policy: Any
) -> None:
    """Real processes of ``sparkdl serve``; the second begins after the first is dead."""
    servers = tmp_path / "servers"
    first = serve(path, tmp_path / "one.log")
    running = [first[0]]
    servers.write_text(first[1])

    class Kill(Hook):
        def on_iteration_end(self, run: Any) -> None:
            if run.state.iteration == 3:
                first[0].send_signal(signal.SIGKILL)
                first[0].wait()
                later.start()

    def replace() -> None:
        process, address = serve(path, tmp_path / "two.log")
        running.append(process)
        servers.write_text(address)

    later = threading.Thread(target=replace)
    try:
        with rows(spark) as data:
            service = Service(str(servers), policy=policy, refresh=0.2)
            options: dict[str, Any] = {"keep": None, "hooks": [Kill()], "iterations_per_job": 1}
            if policy == "skip":  # until the second one is there
                options["end_when"] = MaxIteration(100_000)
                options["hooks"].append(EndWhenAnswered())
            else:
                options["end_when"] = MaxIteration(8)
            history = distiller(service, **options).fit(data).history
        answered = [row["extras"]["answered"] for row in history]
    finally:
        if later.ident is not None:
            later.join()
        for process in running:
            process.kill()
            process.wait()
    assert answered[-1] == 1
    assert (min(answered) == 1) == (policy == "wait")


class EndWhenAnswered(Hook):
    def on_iteration_end(self, run: Any) -> None:
        if run.state.iteration > 5 and run.history[-1]["extras"]["answered"] == 1:
            run.stop("the second one answers")


def serve(path: Path, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server of its own process; return it and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("wb") as file:
        command = [sys.executable, "-m", "sparkdl", "serve", str(path), "--port", str(port), "--copies", "1"]
        process = subprocess.Popen(command, stdout=file, stderr=file)
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                break
        except OSError:
            time.sleep(0.1)
    return process, f"localhost:{port}"
