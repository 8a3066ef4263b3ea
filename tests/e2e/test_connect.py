"""Training and models on Spark Connect, against servers of its own, beside the same fits elsewhere."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import connect_fits
import numpy as np
import psutil
import pytest
from connect_checks import check_whole
from standalone import cluster as standalone
from support.connect import Server, missing, run_client, server
from support.no_jvm import no_jvm

from sparkdl.serve import Predictor

cloudpickle.register_pickle_by_value(connect_fits)  # executors cannot import it

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
]

SCRIPT, THIN, WHOLE = (Path(__file__).with_name(f"connect_{name}.py") for name in ("fits", "thin", "whole"))
FORMAT_1 = Path(__file__).parents[1] / "fixtures" / "format_1"


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Folders of both kinds of session."""
    return two(tmp_path)


def two(folder: Path) -> tuple[Path, Path]:
    """Make two folders in one."""
    found = folder / "classic", folder / "connect"
    for each in found:
        each.mkdir()
    return found


def check(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check that both kinds of session have told the same, but for how they exchanged."""
    direct = {name: value for name, value in found.items() if name.endswith(" direct")}
    for name, count in direct.items():
        assert (count > 0) == (not name.startswith("stages")), name
    plain: dict[str, Any] = json.loads(json.dumps(expected))
    assert found.keys() == plain.keys()
    for name in plain.keys() - direct.keys():
        assert found[name] == plain[name], name


@dataclass(frozen=True)
class TwoSessions:
    """What both kinds of session tell.

    Attributes:
        expected: of a classic one.
        client: of a client, by the function that found it.
        folder: where the client has saved models.
    """

    expected: dict[str, Any]
    client: dict[str, dict[str, Any]]
    folder: Path


@pytest.fixture(scope="module")
def both(connect: Server, tmp_path_factory: pytest.TempPathFactory) -> TwoSessions:
    """Run one client for all tests: it takes longer to start than most of them."""
    place = tmp_path_factory.mktemp("both")
    one, other = two(place)
    with no_jvm(str(place / "executor")) as classic:
        expected = connect_fits.run(classic, [f"fits={one}", "stages"])  # type: ignore[arg-type]
        # A checkpoint of one kind of session is gone on from in the other.
        what = [f"fits={other}", "stages", f"resumed={one}", f"blocked={other}", "estimators"]
        models = [f"transforms={other}", "recsys", f"saved={other}"]
        told = run_client(other, SCRIPT, connect.url, *what, *models)
        expected |= connect_fits.run(classic, [f"resumed={other}"])  # type: ignore[arg-type]
    found: dict[str, dict[str, Any]] = {}
    for name, value in told.items():
        function, _, what_it_is = name.partition(": ")
        found.setdefault(function, {})[what_it_is] = value
    return TwoSessions(expected, found, other)


def test_a_fit_ends_with_the_same_bits_on_both_kinds_of_session(both: TwoSessions) -> None:
    blocked, estimated = both.client["blocked"], both.client["estimators"]
    (told,) = blocked["told"]  # once
    assert "tasks cannot exchange directly (rank " in told
    assert blocked["fit"] == both.expected["stages: lamb"]
    assert not blocked["fit direct"]
    assert len(estimated["predictions"]) == connect_fits.ROWS
    assert np.mean(estimated["history"][-4:]) < np.mean(estimated["history"][:4])
    check(
        {
            f"{function}: {name}": value
            for function in ("fits", "stages", "resumed")
            for name, value in both.client[function].items()
        },
        both.expected,
    )


def test_transforms(both: TwoSessions) -> None:
    found = dict(both.client["transforms"])
    assert found.pop("connect") is True
    error = found.pop("error")
    assert "column 'vector', row" in error
    assert "handleInvalid='skip'" in error
    assert found.pop("scored once")
    assert len(found) == 9
    for name, (ids, last, worst) in found.items():
        skipped = "skip" in name or name in ("looked", "scored")
        assert ids == list(range(9 if skipped else 10)), name
        assert last == ("none" if skipped else None), name
        assert worst <= 1e-6, name


def test_models_are_saved_and_loaded(both: TwoSessions) -> None:
    found = both.client["saved"]
    assert found["same"]
    assert "exists" in found["refused"]
    assert found["replaced"] == ["another", True]
    assert "holds a PipelineModel, and Spark Connect cannot delete it" in found["pipeline"]
    assert Predictor.load(str(both.folder / "fresh"))(np.zeros((1, 4))).shape == (1, 2)
    expected = json.loads(FORMAT_1.joinpath("expected.json").read_text())
    served = Predictor.load(str(both.folder / "copy"))(np.array(expected["x"]))
    np.testing.assert_allclose(served, expected["pipeline_model"], rtol=1e-5, atol=1e-6)


def test_features_of_recommenders(both: TwoSessions) -> None:
    # Each user has had all items but one.
    found = both.client["recsys"]
    assert found["history"] == {"sparkdl": {"shape": [2], "dtype": "int64"}}
    assert found["features"] == [
        ["u0", 5, [10, 2], [8], 2, True, True],
        ["u1", 6, [0, 3], [9], 2, True, True],
        ["u2", 7, [1, 4], [10], 2, True, True],
    ]


@pytest.mark.slow
def test_all_options_end_with_the_same_bits_on_both_kinds_of_session(
    connect: Server, real: Any, folders: tuple[Path, Path]
) -> None:
    one, other = folders
    found = run_client(other, SCRIPT, connect.url, f"all_options={other}", "estimators", "regressor")
    check(found, connect_fits.run(real, [f"all_options={one}", "estimators", "regressor"]))


class Memory:
    """Watches the memory of the processes that a process has started, in GB, each page counted once."""

    def __init__(self) -> None:
        self.peaks: dict[str, float] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.5):
            found = {"server": 0.0, "workers": 0.0, "client": 0.0}
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    command = " ".join(process.cmdline())
                    kind = "client" if SCRIPT.name in command else "workers"
                    kind = "server" if "java" in command.split(" ")[0] else kind
                    found[kind] += process.memory_full_info().pss
            found["all"] = sum(found.values())
            self.peaks = {kind: max(self.peaks.get(kind, 0), round(n / 1e9, 2)) for kind, n in found.items()}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_hundred_million_parameters_end_with_the_same_bits(
    folders: tuple[Path, Path], tmp_path: Path, optimizer: str
) -> None:
    what = f"hundred_million={optimizer}"
    with no_jvm(str(tmp_path / "executor")) as classic:
        expected = connect_fits.run(classic, [what])  # type: ignore[arg-type]
    with server(tmp_path, conf={"spark.driver.memory": "3g"}) as running, Memory() as memory:
        found = run_client(folders[1], SCRIPT, running.url, what)
    seconds = f"{what.replace('=', ': ')} seconds"
    print("seconds", found.pop(seconds), "classic", expected.pop(seconds), "GB at most", memory.peaks)
    check(found, expected)


@pytest.mark.slow
def test_a_client_without_java_trains_and_is_interrupted(connect: Server, tmp_path: Path) -> None:
    found = run_client(tmp_path, THIN, connect.url)
    assert found["line"] == pytest.approx([3, 1], abs=0.01)
    assert found["stopped by"] == "interrupt"
    assert 2 <= found["epochs"] < 100_000
    assert not found["py4j"]


@pytest.mark.slow
def test_a_client_without_java_has_all_of_a_fit(connect: Server, tmp_path: Path) -> None:
    check_whole(run_client(tmp_path, WHOLE, connect.url))


LOSES = {"spark.locality.wait": "300ms", "spark.executor.memory": "1g", "spark.executor.cores": "1"}


def check_losses(folder: Path, url: str, processes: list[int]) -> None:
    """Check that a lost executor changes no bit, and that nothing is left to repair after it."""
    found = run_client(folder, SCRIPT, url, f"lost={','.join(map(str, processes))}")
    for name in ("table", "arrays", "keyed"):
        assert found[f"lost: {name}"] == found[f"lost: {name}: expected"], name


@pytest.mark.slow
def test_a_lost_executor_changes_no_bit(tmp_path: Path) -> None:
    with server(tmp_path, "local-cluster[2,1,1024]", LOSES) as found:
        check_losses(tmp_path, found.url, [found.pid])


@pytest.mark.slow
def test_a_lost_executor_of_a_standalone_cluster_changes_no_bit(tmp_path: Path) -> None:
    with standalone(workers=2) as running, server(tmp_path, running.url, LOSES) as found:
        check_losses(tmp_path, found.url, running.workers)
