"""Training on Spark Connect, against servers of its own, beside the same on classic sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.connect import Server, missing, run_client, server

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
]

SCRIPT, THIN = (Path(__file__).with_name(name) for name in ("connect_fits.py", "connect_thin.py"))


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("server")) as found:
        yield found


def run(kind: str, what: str, folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    return run_client(folder, SCRIPT, kind, what, str(folder))


def test_a_fit_ends_with_the_same_bits_on_both_kinds_of_session(connect: Server, tmp_path: Path) -> None:
    one, other = tmp_path / "classic", tmp_path / "connect"
    expected = run("local[2]", "fits,arrays,stages,estimators", one)
    found = run(connect.url, "fits,arrays,stages,estimators", other)
    direct = {name: value for name, value in found.items() if name.endswith(" direct")}
    for name, count in direct.items():
        assert (count > 0) == name.startswith("fits"), name
    for name in expected.keys() - direct.keys():
        assert found[name] == expected[name], name
    # A checkpoint of one kind of session is gone on from in the other.
    assert run("local[2]", "resumed", other) == run(connect.url, "resumed", one)


def test_a_client_without_java_trains_and_is_interrupted(connect: Server, tmp_path: Path) -> None:
    found = run_client(tmp_path, THIN, connect.url)
    assert found["line"] == pytest.approx([3, 1], abs=0.01)
    assert found["stopped by"] == "interrupt"
    assert 2 <= found["epochs"] < 100_000
    assert not found["py4j"]


def test_a_lost_executor_changes_no_bit(tmp_path: Path) -> None:
    conf = {"spark.locality.wait": "300ms", "spark.executor.memory": "1g"}
    with server(tmp_path, "local-cluster[2,1,1024]", conf) as found:
        told = run_client(tmp_path, SCRIPT, found.url, "lost", str(found.pid))
    assert told["lost: killed"] == 1
    assert told["lost: bits"] == told["lost: expected"]
