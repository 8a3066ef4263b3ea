"""Several hosts: whatever their network does, the weights are those of an undisturbed run.

Each host has a network and files of its own, see :mod:`support.hosts`; no folder is shared.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from support.hosts import REPOSITORY, Hosts, hosts, unavailable
from support.hosts_program import rows

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(900)]

STEPS = 400
_PAUSED = ("--steps", str(STEPS), "--pause", "0.02")


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    if reason := unavailable():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def three(possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with hosts(tmp_path_factory.mktemp("hosts"), 3) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(three: Hosts) -> dict[str, Any]:
    found = three.drive("--steps", str(STEPS)).result()
    assert found["direct"] == found["iterations"] == STEPS
    return found


def test_bits_do_not_depend_on_the_number_of_hosts(three: Hosts) -> None:
    found = [three.drive("--partitions", "6", "--cores", str(cores)).result() for cores in (1, 2, 3)]
    assert len({each["bits"] for each in found}) == 1
    assert all(each["direct"] == each["iterations"] == 200 for each in found)


def _pull(made: Hosts) -> None:
    made.cable(2, False)
    time.sleep(20)
    made.cable(2, True)


def _mute(made: Hosts) -> None:
    made.mute(2, True)
    time.sleep(20)
    made.mute(2, False)


def _deafen(made: Hosts) -> None:
    made.deaf(2, True)
    time.sleep(20)
    made.deaf(2, False)


def _reboot(made: Hosts) -> None:
    made.reboot(2)


@pytest.mark.parametrize("happens", [_pull, _mute, _deafen, _reboot])
def test_bits_survive_what_happens_to_a_host(
    three: Hosts, undisturbed: dict[str, Any], happens: Callable[[Hosts], None]
) -> None:
    driver = three.drive(*_PAUSED)
    driver.until("iteration 60 ")
    happens(three)
    assert driver.result()["bits"] == undisturbed["bits"]


@pytest.mark.parametrize("rate", ["100mbit", "1gbit"])
def test_slow_links_change_no_bit(three: Hosts, rate: str) -> None:
    large = ("--hidden", "4096", "--steps", "30")  # 1.1 MB of weights
    wanted = three.drive(*large).result()
    for host in (1, 2, 3):
        three.rate(host, rate)
    try:
        found = three.drive(*large).result()
    finally:
        for host in (1, 2, 3):
            three.rate(host, "10gbit")
    assert found["bits"] == wanted["bits"]
    assert found["direct"] == 30


@pytest.fixture(scope="module")
def table(three: Hosts) -> str:
    """Return the path of a table that each host has on a disk of its own."""
    made = three.folder / "table"
    made.mkdir()
    x, y = rows()
    for part in range(4):
        some = slice(part * 1500, (part + 1) * 1500)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(x[some].reshape(-1)), x.shape[1])
        parquet.write_table(pa.table({"x": lists, "y": y[some]}), made / f"{part}.parquet", row_group_size=60)
    for host in range(4):
        shutil.copytree(made, three.folder / f"h{host}" / "tmp" / "table")
    return "/tmp/table"


def test_files_are_read_where_they_lie(three: Hosts, table: str) -> None:
    scan = ("--table", table, "--partitions", "6")
    found = [three.drive(*scan, "--cores", str(cores)).result() for cores in (1, 2, 3)]
    found.append(three.drive(*scan, "--cache-bytes", "400000").result())
    assert len({each["bits"] for each in found}) == 1
    assert all(each["direct"] == each["iterations"] == 200 for each in found)


@pytest.mark.parametrize("happens", [_pull, _reboot])
def test_what_happens_to_a_host_changes_no_bit_of_a_scan(
    three: Hosts, table: str, happens: Callable[[Hosts], None]
) -> None:
    scan = ("--table", table, "--cache-bytes", "1000000", "--steps", str(STEPS))
    wanted = three.drive(*scan).result()
    driver = three.drive(*scan, "--pause", "0.02")
    driver.until("iteration 60 ")
    happens(three)
    assert driver.result()["bits"] == wanted["bits"]


def test_two_fits_at_once(three: Hosts, undisturbed: dict[str, Any]) -> None:
    both = [three.drive(*_PAUSED, "--cores", cores) for cores in ("1", "2")]
    assert {driver.result()["bits"] for driver in both} == {undisturbed["bits"]}


def test_a_driver_on_a_host_of_a_worker(three: Hosts, undisturbed: dict[str, Any]) -> None:
    """Neither spark.driver.host nor SPARK_LOCAL_IP says where it is."""
    driver = three.drive("--steps", str(STEPS), host=1, environment={"SPARK_LOCAL_IP": ""})
    found = driver.result()
    assert (found["host"], found["bits"]) == ("h1", undisturbed["bits"])
    assert found["direct"] == STEPS


def test_a_connect_server_in_front(three: Hosts, undisturbed: dict[str, Any]) -> None:
    with three.connect() as url:
        found = three.drive("--steps", str(STEPS), host=3, url=url).result()
    assert (found["host"], found["bits"]) == ("h3", undisturbed["bits"])
    assert found["direct"] == STEPS


def test_checkpoints_in_a_folder_of_the_driver(three: Hosts, undisturbed: dict[str, Any]) -> None:
    driver = three.drive(*_PAUSED, "--checkpoints", "/tmp/checkpoints")
    driver.until("iteration 120 ")
    driver.process.kill()
    driver.process.wait()
    assert any((three.tmp(0) / "checkpoints").iterdir())
    assert not (three.tmp(1) / "checkpoints").exists()
    resumed = three.drive("--steps", str(STEPS), "--checkpoints", "/tmp/checkpoints", "--resume")
    assert resumed.result()["bits"] == undisturbed["bits"]
    assert "resumed after iteration 1" in resumed.out.read_text()


def test_hosts_that_the_driver_cannot_resolve(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    with hosts(tmp_path, 2, unknown=(1, 2)) as made:
        found = made.drive("--steps", str(STEPS), "--cores", "2").result()
    assert found["bits"] == undisturbed["bits"]


def test_a_host_without_the_package(tmp_path: Path) -> None:
    with hosts(tmp_path, 1) as made:
        made.kill(1)
        made.start_worker(1, f"mount -t tmpfs tmpfs {REPOSITORY / 'sparkdl'}")
        said = made.drive().error()
    assert "sparkdl" in said
    assert "h1" in said


def test_a_full_disk_on_one_host(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    with hosts(tmp_path, 2) as made:
        made.kill(2)
        made.start_worker(2, "mount -t tmpfs -o size=1m tmpfs /tmp/spark")
        driver = made.drive("--steps", str(STEPS), "--cores", "2")
        status = driver.process.wait(400)
        said = driver.log.read_text()
        assert "No space left" in said if status else driver.result()["bits"] == undisturbed["bits"]
