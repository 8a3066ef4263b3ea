from dataclasses import replace
from functools import partial
from itertools import permutations

import numpy as np
import pytest
import torch
from support.data import read_only

from sparkdl import frame
from sparkdl.allreduce.update import RESULT, STATE, Turn, Update, problem_frame, shard_frame, update_slice
from sparkdl.allreduce.weights import WeightsRef
from sparkdl.layout import ParamLayout, lay_out
from sparkdl.optim import OptimizerSpec
from sparkdl.optim.rule import UpdateRule

LAYOUT = ParamLayout(
    lay_out([("a", (4,), 0), ("b", (2, 2), 0)]), lay_out([("mean", (2,), 0)]), lay_out([("n", (), 0)])
)
PARAMS = np.arange(8, dtype=np.float32)
SGD = OptimizerSpec(partial(torch.optim.SGD, lr=1.0))
ADAM = OptimizerSpec(partial(torch.optim.Adam, lr=0.1))
USED = np.ones(2, np.bool_)


def weights(params=PARAMS):
    arrays = {
        "params": params,
        "buffers": np.array([1, 2], np.float32),
        "counters": np.array([5], np.int64),
    }
    return WeightsRef(0, frame.join(frame.pack({"version": 0}, arrays)))


def task(start=0, stop=8, optimizer=SGD, params=PARAMS):
    return Update(LAYOUT, start, stop, UpdateRule(optimizer), weights(params))


def shard(source, weight, gradient, used=USED):
    return frame.join(shard_frame(source, weight, np.array(gradient, np.float32), np.array(used)))


def report(source, weight=1.0, **arrays):
    meta = {"kind": "report", "source": source, "weight": weight, "loss": 0.5}
    return frame.join(frame.pack(meta, arrays))


def problem(source):
    return frame.join(problem_frame(source, {"kind": "missing", "partition": source}))


def run(update, *frames):
    """Unpacked results as (key, frame)."""
    return [(key, frame.unpack(frame.join(parts))) for key, parts in update_slice(update, iter(frames))]


def params_of(results):
    (message,) = [m for key, m in results if key == RESULT and m.meta["kind"] == "slice"]
    return message.arrays["params"]


# -- weights ------------------------------------------------------------------------------------


def test_the_weighted_mean_of_the_shards_updates_the_slice():
    results = run(task(2, 5), shard(1, 1.0, [4, 0, 8]), shard(0, 3.0, [0, 4, 8]))
    assert params_of(results).tolist() == [2 - 1, 3 - 3, 4 - 8]
    assert [(key, m.meta["kind"]) for key, m in results] == [(RESULT, "slice"), (STATE, "state")]
    assert results[0][1].meta["start"] == 2


def test_meta_counts_bytes():
    frames = [shard(1, 1.0, np.ones(8)), report(0)]
    results = run(task(), *frames)
    meta = results[0][1].meta
    assert meta["received"] == sum(map(len, frames))
    assert meta["state_bytes"] > 0
    assert meta["task"]["phases"]["update"] >= 0


def test_state_travels_from_iteration_to_iteration():
    whole = torch.from_numpy(PARAMS.copy()).requires_grad_()
    reference = torch.optim.Adam([whole], lr=0.1)
    params, kept = PARAMS, []
    for t in range(3):
        gradient = np.sin(np.arange(8) + t).astype(np.float32)
        whole.grad = torch.from_numpy(gradient)
        reference.step()
        results = update_slice(task(0, 8, ADAM, params), iter([shard(0, 4.0, gradient), *kept]))
        frames = [(key, frame.join(parts)) for key, parts in results]
        kept = [data for key, data in frames if key == STATE]
        params = frame.unpack(frames[0][1]).arrays["params"]
    np.testing.assert_array_equal(params, whole.detach().numpy())


def test_what_may_be_overwritten_is_and_changes_no_bit():
    gradients = [np.sin(np.arange(8) + n).astype(np.float32) for n in range(2)]
    shards = [frame.unpack(shard(n, n + 1.0, own)) for n, own in enumerate(gradients)]
    master = replace(task(0, 8, ADAM), master=read_only(PARAMS))
    kept = [parts for key, parts in update_slice(master, shards) if key == STATE]
    expected = [frame.join(parts) for _, parts in update_slice(master, [*kept, *shards])]

    writable = [frame.unpack(bytearray(frame.join(parts)), writable=True) for parts in kept]
    writable += [frame.unpack(bytearray(shard(1, 2.0, gradients[1])), writable=True), shards[0]]
    own = replace(task(0, 8, ADAM), master=PARAMS.copy())
    results = [frame.unpack(parts) for _, parts in update_slice(own, writable)]
    params, state = results[0].arrays["params"], results[1].arrays
    assert np.shares_memory(params, own.master)
    assert np.shares_memory(state["0.exp_avg"], writable[0].arrays["0.exp_avg"])
    assert not np.array_equal(writable[1].arrays["gradient"], gradients[1])
    np.testing.assert_array_equal(shards[0].arrays["gradient"], gradients[0])
    np.testing.assert_array_equal(PARAMS, np.arange(8))
    first, second = map(frame.unpack, expected)
    assert params.tobytes() == first.arrays["params"].tobytes()
    assert state.keys() == second.arrays.keys()
    assert all(state[name].tobytes() == second.arrays[name].tobytes() for name in state)


def test_an_average_does_not_share_memory_with_the_weights():
    gradient = np.ones(8, np.float32)
    first = replace(task(), master=PARAMS.copy(), averaging=True, turn=Turn(average=1.0))
    results = [frame.unpack(parts) for _, parts in update_slice(first, [shard(0, 1.0, gradient)])]
    (average,) = (m.arrays["params"] for m in results if m.meta["kind"] == "average")
    np.testing.assert_array_equal(average, results[0].arrays["params"])
    assert not np.shares_memory(average, results[0].arrays["params"])


def test_the_order_of_arrival_changes_no_bit():
    generator = np.random.default_rng(0)
    frames = [shard(s, s + 0.5, generator.normal(size=8)) for s in range(3)]
    frames.append(report(0, 0.5, buffers=np.array([0.1, 0.2], np.float32)))
    frames.append(report(1, 1.5, buffers=np.array([0.3, 0.7], np.float32)))
    expected = None
    for order in permutations(frames):
        results = run(task(0, 8, ADAM), *order)
        found = params_of(results).tobytes(), results[-1][1].arrays["buffers"].tobytes(), results[-1][1].meta
        expected = expected or found
        assert found == expected


def test_a_parameter_that_any_source_used_is_updated():
    frames = [shard(0, 1.0, [2] * 4 + [0] * 4, [True, False]), shard(1, 1.0, [0] * 8, [False, False])]
    decaying = OptimizerSpec(partial(torch.optim.SGD, lr=1.0, weight_decay=1.0))
    assert params_of(run(task(optimizer=decaying), *frames)).tolist() == [-1, -1, -1, -1, 4, 5, 6, 7]


def test_without_shards_weights_and_state_stay():
    first = run(task(optimizer=ADAM), shard(0, 1.0, np.ones(8)))
    assert first[1][0] == STATE
    (before,) = [
        frame.join(parts)
        for key, parts in update_slice(task(optimizer=ADAM), iter([shard(0, 1.0, np.ones(8))]))
        if key == STATE
    ]
    results = list(update_slice(task(optimizer=ADAM), iter([before, report(0, 0.0)])))
    assert frame.unpack(frame.join(results[0][1])).arrays["params"].tolist() == PARAMS.tolist()
    assert frame.join(results[1][1]) == before


def test_an_empty_slice():
    results = run(task(8, 8, ADAM), shard(0, 1.0, []), shard(1, 1.0, []))
    assert params_of(results).shape == (0,)


# -- problems -----------------------------------------------------------------------------------


def test_problems_are_passed_on_in_source_order_and_nothing_is_updated():
    results = run(task(), problem(2), shard(1, 1.0, np.ones(8)), report(1), problem(0))
    assert [(key, m.meta["kind"]) for key, m in results] == [(RESULT, "problems")]
    assert [p["partition"] for p in results[0][1].meta["problems"]] == [0, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("index", "parameter"), [(0, "a"), (1, "a"), (2, "b")])
def test_a_gradient_that_is_not_finite_names_parameter_and_sources(bad, index, parameter):
    gradient = np.ones(4)
    gradient[index] = bad
    results = run(task(2, 6), shard(5, 1.0, gradient), shard(1, 1.0, np.ones(4)), shard(3, 1.0, gradient))
    assert len(results) == 1
    key, message = results[0]
    assert (key, message.meta["kind"]) == (RESULT, "problems")
    assert message.meta["problems"] == [{"kind": "gradient", "parameter": parameter, "sources": [3, 5]}]


def test_a_huge_finite_gradient_is_fine():
    assert np.isfinite(params_of(run(task(), shard(0, 1.0, np.full(8, 3e38))))).all()


# -- reports ------------------------------------------------------------------------------------


def combined(*frames):
    results = run(task(), shard(0, 1.0, np.zeros(8)), *frames)
    assert (results[-1][0], results[-1][1].meta["kind"]) == (RESULT, "reports")
    return results[-1][1]


def test_reports_come_in_source_order():
    message = combined(report(2), report(0), report(1, 0.0))
    assert [r["source"] for r in message.meta["reports"]] == [0, 1, 2]
    assert message.arrays == {}


def test_only_the_slice_that_gets_reports_passes_them_on():
    results = run(task(), shard(0, 1.0, np.zeros(8)))
    assert all(m.meta["kind"] != "reports" for _, m in results)


def test_buffers_are_averaged_by_weight_and_unchanged_ones_count():
    message = combined(
        report(0, 1.0, buffers=np.array([5, 6], np.float32)),
        report(1, 3.0),  # left its buffers at [1, 2]
        report(2, 0.0, buffers=np.array([99, 99], np.float32)),
    )
    assert message.arrays["buffers"].tolist() == [2, 3]


def test_counters_take_the_maximum():
    message = combined(report(0, counters=np.array([6])), report(1, counters=np.array([8])), report(2))
    assert message.arrays["counters"].tolist() == [8]
    assert "buffers" not in message.arrays


def test_sources_without_weight_change_no_buffer():
    assert combined(report(0, 0.0, buffers=np.array([9, 9], np.float32))).arrays == {}
