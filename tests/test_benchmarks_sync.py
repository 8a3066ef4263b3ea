import json
import os
import subprocess
import sys

import pytest
from test_benchmarks import FOLDER

KEYS = {
    "exchange",
    "parameters",
    "partitions",
    "milliseconds",
    "phases",
    "gradient_bytes",
    "bandwidth_MB_s",
    "gloo_milliseconds",
    "ratio_to_gloo",
    "peak_rss_MB",
}


@pytest.mark.slow
def test_sync_is_measured_beside_gloo(tmp_path):
    path = tmp_path / "sync.json"
    options = ["--parameters", "1e4", "--partitions", "2", "--iterations", "3", "--seconds", "0.5"]
    command = [sys.executable, str(FOLDER / "sync.py"), "--master", "local[2]", *options, "--json", str(path)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    (row,) = json.loads(path.read_text())
    assert set(row) >= KEYS
    assert (row["exchange"], row["parameters"], row["partitions"]) == ("driver", 10_000, 2)
    assert row["gradient_bytes"] >= 2 * 4 * 10_000
    assert row["milliseconds"] > 0
    assert row["bandwidth_MB_s"] == pytest.approx(4 * 10_000 / row["milliseconds"] / 1e3, rel=1e-2)
    assert row["ratio_to_gloo"] == pytest.approx(row["gloo_milliseconds"] / row["milliseconds"], rel=1e-2)
    assert "| driver | shuffle | 0.0 | 10000 | 2 |" in done.stdout
    assert "No cost model" in done.stdout  # one row cannot tell its terms apart


@pytest.fixture
def sync(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import sync

    return sync


def rows_of(sync, seconds, exchange="driver"):
    """Rows whose times follow a cost model exactly."""
    rows = []
    for numel in (10_000, 1_000_000, 10_000_000):
        for partitions in (2, 8, 32):
            counted = sync.counts(exchange, numel, partitions, partitions, 2)
            rows.append(
                {
                    "exchange": exchange,
                    "parameters": numel,
                    "partitions": partitions,
                    "shards": partitions,
                    "slots": 2,
                    "milliseconds": 1e3 * sum(seconds[term] * counted[term] for term in seconds),
                    "phases": {"broadcast": 1e3 * seconds["weights"] * counted["weights"], "weights_in": 0.0},
                    "scheduling_ms_per_task": 1e3 * seconds["scheduling"],
                }
            )
    return rows


SECONDS = {
    "fixed": 0.05,
    "scheduling": 0.002,
    "task": 0.006,
    "shard": 1e-4,
    "exchanged": 4e-9,
    "owned": 6e-9,
    "weights": 3e-9,
}


@pytest.mark.parametrize("exchange", ["driver", "sharded", "replicated"])
def test_the_cost_model_finds_what_the_rows_follow(sync, exchange):
    model = sync.fit(rows_of(sync, SECONDS, exchange))
    assert model.seconds == pytest.approx(SECONDS, rel=1e-3)
    assert model.r2 == pytest.approx(1)
    assert model.error < 1e-3


def test_rows_that_cannot_tell_terms_apart_give_no_model(sync):
    rows = rows_of(sync, SECONDS)
    assert sync.fit([]) is None
    assert sync.fit([row for row in rows if row["partitions"] == 2]) is None
    assert sync.fit([row for row in rows if row["parameters"] == 10_000]) is None


def test_more_executors_share_the_update_and_wait_for_the_driver(sync):
    model = sync.CostModel("driver", SECONDS, r2=1.0, error=0.0, slots=2, rows=9)
    numel, network = 10_000_000, 1.25e9
    size = 4 * numel
    for executors in (8, 512):
        found, scheduling = model.predict(numel, executors, network)
        assert scheduling == pytest.approx(0.004 * executors)
        tasks = 0.05 + 2 * 0.006 + (0.004 + 1e-4) * executors
        assert found == pytest.approx(tasks + (4e-9 + 3e-9 + 6e-9 / executors + 1 / network) * size)
    slow, _ = model.predict(numel, 8, 1e8)  # a network slower than what bytes cost here
    assert slow > 3 * size / 1e8
