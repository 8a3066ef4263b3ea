"""What the benchmarks of the direct transport make of what they measure."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chaos
import cost_model
import keeping
import links
import numpy as np
import peers
import profile_step
import pytest
import scale
import topologies

FOLDER = Path(peers.__file__).parent
TERMS = {"job": 0.02, "task": 0.002, "step": 0.001, "report": 0.00005}


# -- keeping ---------------------------------------------------------------------------------------


def test_rows_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    keeping.write(None, [{"a": 1}])
    keeping.write(str(path), [{"a": 1}])
    keeping.write(str(path), [{"a": 1}, {"a": 2}])
    assert json.loads(path.read_text()) == [{"a": 1}, {"a": 2}]
    assert [each.name for each in tmp_path.iterdir()] == ["rows.json"]


def test_a_cut_off_block_ends_and_says_why() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with keeping.cut_off() as causes:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert causes == ["SIGTERM"]
    with keeping.cut_off() as causes:
        raise KeyboardInterrupt
    assert causes == ["SIGINT"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_errors_while_cleaning_up_do_not_hide_what_was_measured() -> None:
    with keeping.cut_off() as causes:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            raise ValueError("jobs were cancelled")
    assert causes == ["SIGTERM"]
    with pytest.raises(ValueError, match="not cut off"), keeping.cut_off():
        raise ValueError("not cut off")


# -- peers -----------------------------------------------------------------------------------------


def arguments_of(module: Any, monkeypatch: pytest.MonkeyPatch, *options: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["benchmark", *options])
    return module.arguments()


@pytest.mark.parametrize(
    ("modes", "warm_up"),
    [(["ddp", "direct"], 20.0), (["ddp", "groups"], 300.0), (["direct sharded", "bare"], 300.0)],
)
def test_warm_up_is_what_the_modes_need(
    monkeypatch: pytest.MonkeyPatch, modes: list[str], warm_up: float
) -> None:
    found = arguments_of(peers, monkeypatch, "--works", "mlp", "--modes", *modes)
    assert found.warm_up == warm_up
    assert found.warm_by["transport"] == ("direct" if warm_up < 300 else "shuffle")


def test_every_mode_names_its_transport() -> None:
    direct = {mode for mode, options in peers.SPARKDL.items() if options["transport"] == "direct"}
    assert direct == {"direct", "direct sharded", "direct local 8", "direct local 64"}


def test_rounds_that_warm_up_are_not_counted_but_kept() -> None:
    figures = peers.Figures("mlp", 128, {"ddp": [10.0, 12.0, 14.0], "direct": [99.0, 6.0]}, {"direct": 0.9})
    found = {row["mode"]: row for row in figures.rows()}
    assert (found["ddp"]["ms_per_iteration"], found["ddp"]["rounds"]) == (12.0, 3)
    assert (found["direct"]["ms_per_iteration"], found["direct"]["rounds"]) == (6.0, 1)
    assert found["direct"]["time_over_ddp"] == 0.5
    assert (found["direct"]["direct"], found["ddp"]["direct"]) == (0.9, None)
    (cut,) = peers.Figures("mlp", 128, {"direct": [99.0]}).rows()
    assert (cut["ms_per_iteration"], cut["rounds"], cut["time_over_ddp"]) == (99.0, 0, None)


def test_the_second_half_is_one_of_time() -> None:
    rows: Any = [{"seconds": 1.0}, *({"seconds": 0.25} for _ in range(4))]
    assert peers.second_half(rows) == rows[1:]
    assert peers.second_half([]) == []


# -- chaos -----------------------------------------------------------------------------------------


def test_a_driver_is_told_all_of_a_training() -> None:
    training = chaos.Training("kill", 60, "replicated", "mixed", 3)
    options = training.options()
    assert options[options.index("--transport") + 1] == "mixed"
    assert options[options.index("--seed") + 1] == "3"


def test_progress_says_whether_the_latest_step_was_direct(tmp_path: Path) -> None:
    assert chaos._progress(tmp_path) == (0, False)
    (tmp_path / "progress").write_text("12 1")
    assert chaos._progress(tmp_path) == (12, True)


# -- scale and cost model --------------------------------------------------------------------------


def rows_of(transport: str, executors: tuple[int, ...] = (2, 4, 8)) -> list[dict[str, Any]]:
    """Rows of scale.py that follow TERMS exactly."""
    rows = []
    for ranks in executors:
        for steps in (5, 25):
            stages = 1 if transport == "direct" else steps + 1
            counted = {"job": 1, "task": stages * ranks, "step": steps, "report": steps * ranks}
            each = 1e3 * sum(TERMS[term] * counted[term] for term in TERMS)
            rows.append(
                {
                    "executors": ranks,
                    "transport": transport,
                    "jobs": 10,
                    "tasks": 10 * stages * ranks,
                    "steps": 10 * steps,
                    "driver_jvm_ms": {"job": 0.8 * each},
                    "driver_python_ms": {"job": 0.2 * each},
                }
            )
    return rows


@pytest.mark.parametrize("transport", ["shuffle", "direct"])
def test_the_model_finds_what_the_rows_follow(transport: str) -> None:
    skipped = {"executors": 48, "skipped": "memory"}
    driver = cost_model.fit_driver([*rows_of(transport), skipped], transport)
    assert driver is not None
    assert {term: getattr(driver, term) for term in TERMS} == pytest.approx(TERMS, rel=1e-3)
    assert driver.executors == 8
    assert cost_model.fit_driver(rows_of(transport), "other") is None


def test_direct_groups_pay_for_tasks_once() -> None:
    driver = cost_model.Driver(**TERMS, error=0.0, executors=8)
    carrier, around = cost_model.Carrier(), cost_model.Surroundings()
    found = {
        name: cost_model.sync_seconds(28_000_000, 512, name, driver, carrier, around)
        for name in ("shuffle", "direct")
    }
    assert found["shuffle"][1] > 2 * 512 * TERMS["task"]
    assert found["direct"][1] < 512 * TERMS["task"]
    assert found["direct"][0] < found["shuffle"][0]


def test_a_faster_network_and_a_smaller_model_want_something_else_sooner() -> None:
    carrier = cost_model.Carrier()
    slow = cost_model.from_peers(100_000_000, carrier, cost_model.Surroundings())
    fast = cost_model.from_peers(28_000_000, carrier, cost_model.Surroundings(network=3e9))
    assert fast["messages_are_10_percent_of_bytes"] < slow["messages_are_10_percent_of_bytes"]
    assert fast["something_else_pays"] >= fast["messages_are_1_percent_of_compute"]


def test_costs_are_those_between_two_starts_of_groups() -> None:
    clocks = [scale.Clocks(float(n), 0.1 * n, 0.02 * n, Counter({"a": n})) for n in range(4)]
    groups = scale.Groups(0, 0.0, [(each, 5) for each in clocks[:3]])
    row = scale.costs(groups, clocks[3], executors=4, transport="direct", idle=0.05)
    assert (row["jobs"], row["tasks"], row["steps"]) == (2, 8, 10)
    assert row["driver_jvm_ms"] == {"job": 50.0, "task": 12.5, "step": 10.0}
    assert row["driver_python_ms"]["job"] == 20.0
    assert row["seconds_per_group"] == 1.0
    assert scale.costs(groups, clocks[3], 4, "shuffle", 0.05)["tasks"] == 4 * (10 + 2)
    assert "error" in scale.costs(scale.Groups(0, 0.0, []), clocks[3], 4, "direct", 0.0)


# -- profile ---------------------------------------------------------------------------------------


def test_time_is_charged_to_whoever_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 3.5])
    monkeypatch.setattr(profile_step, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    ledger = profile_step.Ledger()
    ledger.enter("outer")
    ledger.enter("inner")
    ledger.leave()
    ledger.leave()
    assert ledger.seconds == {"outer": 1.5, "inner": 2.0}
    assert ledger.calls == {"outer": 1, "inner": 1}


class Some:
    def method(self, value: int) -> int:
        return value

    @classmethod
    def of(cls, value: int) -> tuple[str, int]:
        return cls.__name__, value


def test_methods_of_all_kinds_are_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("method", "of"):
        monkeypatch.setattr(Some, name, vars(Some)[name])
    ledger = profile_step.Ledger()
    lacking = profile_step.wrap(ledger, {"part": (f"{__name__}:Some.method", f"{__name__}:Some.of", "no:x")})
    assert lacking == ["no:x"]
    assert (Some().method(3), Some.of(4)) == (3, ("Some", 4))
    assert ledger.calls["part"] == 2


def test_shares_are_of_the_later_groups(tmp_path: Path) -> None:
    for moment, torch in ((1, 50.0), (2, 0.6)):
        seconds = {"torch: forward, backward": torch, "waiting": 0.2, "other": 0.2}
        found = {"steps": 100, "seconds": seconds, "calls": {"other": 100}, "lacking": []}
        (tmp_path / f"7-{moment}.json").write_text(json.dumps(found))
    rows = {row["part"]: row for row in profile_step.shares("mlp", "replicated", tmp_path)}
    assert rows["torch in all"]["percent"] == 60.0
    assert rows["torch in all"]["percent_without_waiting"] == 75.0
    assert rows["step"]["ms_per_step"] == 10.0


@pytest.mark.whole
def test_what_is_wrapped_is_there() -> None:
    code = "import profile_step as p; print(p.wrap(p.Ledger()))"
    paths = os.pathsep.join([str(FOLDER), str(FOLDER.parent)])
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, env=os.environ | {"PYTHONPATH": paths}
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr[-2000:]


# -- carrier ---------------------------------------------------------------------------------------


@pytest.mark.whole
def test_two_processes_carry_the_same_values() -> None:
    options = ["--peers", "2", "--bytes", "100", "3e6", "--seconds", "0.05"]
    command = [sys.executable, str(FOLDER / "carrier.py"), *options]
    paths = str(FOLDER.parent)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"PYTHONPATH": paths}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["carrier"] for row in rows} == {"gloo", "tcp", "unix"}
    assert len(rows) == 2 * 7
    assert all(row["ms"] > 0 and row["time_over_gloo"] > 0 for row in rows)
    assert not cost_model.fit_carrier(rows).measured  # it takes two numbers of peers


@pytest.mark.parametrize("way", topologies.WAYS)
@pytest.mark.parametrize("peers", [2, 3, 4, 6, 8, 16])
def test_everybody_ends_with_the_sum(way: str, peers: int) -> None:
    vectors = [np.full(50, 1 << n, dtype=np.float32) for n in range(peers)]  # exact in any order
    wire = topologies.Wire()
    for total in topologies.WAYS[way](vectors, wire):
        assert np.array_equal(total, sum(vectors))
    messages = {"all-to-all": 2 * (peers - 1), "ring": 2 * (peers - 1), "tree": (peers - 1).bit_length()}
    assert max(wire.messages.values()) == messages.get(way, wire.messages[0])


# -- hosts whose links have a rate -----------------------------------------------------------------


def test_plain_sockets_bring_everything_to_everybody() -> None:
    pairs = [socket.socketpair() for _ in range(3)]  # of ranks 0 and 1, 0 and 2, 1 and 2
    ends = [end for pair in pairs for end in pair]
    for end in ends:
        end.setblocking(False)
    mine = [[ends[0], ends[2]], [ends[1], ends[4]], [ends[3], ends[5]]]
    data = bytes(1 << 20)
    ranks = [threading.Thread(target=links.exchange, args=(each, data), daemon=True) for each in mine]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(30)
    assert not any(rank.is_alive() for rank in ranks)
    for end in ends:
        with pytest.raises(BlockingIOError):  # nothing is left
            end.recv(1)
    for end in ends:
        end.close()


def test_a_step_among_hosts_takes_what_the_links_take() -> None:
    given = argparse.Namespace(compute=0.5)
    assert links.bytes_per_second("100mbit") == 12.5e6
    said = links.foretold(given, 7_000_000, 8, "100mbit")
    # Two exchanges of seven eighths of 28 MB, at the share of the rate that TCP reaches.
    assert said == pytest.approx(0.5 + 2 * 28e6 * 7 / 8 / 12.5e6 / 0.8, rel=0.01)
    bare = links.foretold(given, 7_000_000, 8, "100mbit", plain=5.0)
    assert bare == pytest.approx(5.5, rel=0.01)
