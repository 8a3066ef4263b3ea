from dataclasses import replace
from functools import partial
from itertools import permutations

import numpy as np
import pytest
import torch

from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import Report, Shard, State
from sparkdl.allreduce.plan import Directives
from sparkdl.allreduce.update import shard as shard_update
from sparkdl.allreduce.update.combine import combine_reports
from sparkdl.allreduce.update.shard import ShardUpdate
from sparkdl.compute.problems import NonFiniteGradient, ProblemError
from sparkdl.optim import OptimizerSpec
from sparkdl.optim.shard.optimizer import UpdateRule
from sparkdl.wire import frame
from sparkdl.wire.held import Owned
from sparkdl.wire.layout import ParamLayout, lay_out

LAYOUT = ParamLayout(
    lay_out([("a", (4,), 0), ("b", (2, 2), 0)]), lay_out([("mean", (2,), 0)]), lay_out([("n", (), 0)])
)
PARAMS = np.arange(8, dtype=np.float32)
SGD = OptimizerSpec(partial(torch.optim.SGD, lr=1.0))
ADAM = OptimizerSpec(partial(torch.optim.Adam, lr=0.1))
USED = np.ones(2, np.bool_)


def task(start=0, stop=8, optimizer=SGD, params=PARAMS, **options):
    weights = torch.tensor(params[start:stop])
    return ShardUpdate(
        layout=LAYOUT, start=start, stop=stop, rule=UpdateRule(optimizer), weights=weights, **options
    )


def update_shard(update, shards, state: State | None = None):
    return shard_update.update_shard(update, shards, update.optimizer(state))


def arrived(message, writable=True):
    data = frame.join(messages.encode(message))
    return messages.decode(bytearray(data) if writable else data, mine=True)


def shard(source, weight, gradient, used=USED, writable=False):
    return arrived(Shard.of(source, weight, np.array(gradient, np.float32), np.array(used)), writable)


def params_of(done):
    return done.shard.held.value


# -- weights ------------------------------------------------------------------------------------


def test_the_weighted_mean_of_the_gradients_updates_the_shard():
    done = update_shard(task(2, 5), [shard(1, 1.0, [4, 0, 8]), shard(0, 3.0, [0, 4, 8])])
    assert params_of(done).tolist() == [2 - 1, 3 - 3, 4 - 8]
    assert done.shard.facts.start == 2
    assert done.average is None


def test_facts_count_bytes():
    arriving = [shard(1, 1.0, np.ones(8)), shard(0, 1.0, np.ones(8))]
    facts = update_shard(task(optimizer=ADAM), arriving).shard.facts
    assert facts.received == messages.nbytes(arriving) == 2 * (8 * 4 + 2)
    assert facts.state_bytes == 2 * 8 * 4 + 4  # two moments, and the count of steps
    assert facts.task["phases"]["update"] >= 0


def test_state_travels_from_step_to_step():
    whole = torch.from_numpy(PARAMS.copy()).requires_grad_()
    reference = torch.optim.Adam([whole], lr=0.1)
    params, state = PARAMS, None
    for t in range(3):
        gradient = np.sin(np.arange(8) + t).astype(np.float32)
        whole.grad = torch.from_numpy(gradient)
        reference.step()
        done = update_shard(task(0, 8, ADAM, params), [shard(0, 4.0, gradient)], state)
        state, params = arrived(done.state, writable=t % 2 == 0), params_of(done)
    np.testing.assert_array_equal(params, whole.detach().numpy())


def test_what_is_owned_is_overwritten_and_changes_no_bit():
    gradients = [np.sin(np.arange(8) + n).astype(np.float32) for n in range(2)]

    def shards(writable):
        return [shard(n, n + 1.0, own, writable=writable and n == 1) for n, own in enumerate(gradients)]

    before = update_shard(task(0, 8, ADAM), shards(False)).state
    expected = update_shard(task(0, 8, ADAM), shards(False), arrived(before, writable=False))
    state, mine = arrived(before), shards(True)
    master = replace(task(0, 8, ADAM), weights=torch.tensor(PARAMS))
    found = update_shard(master, mine, state)
    assert isinstance(state.state, Owned)
    assert np.shares_memory(params_of(found), master.weights.numpy())
    assert np.shares_memory(found.state.frame().arrays["0.exp_avg"], state.frame().arrays["0.exp_avg"])
    assert not np.array_equal(mine[1].coded.arrays["gradient"], gradients[1])
    np.testing.assert_array_equal(mine[0].coded.arrays["gradient"], gradients[0])
    np.testing.assert_array_equal(PARAMS, np.arange(8))
    assert params_of(found).tobytes() == params_of(expected).tobytes()
    first, second = found.state.frame().arrays, expected.state.frame().arrays
    assert first.keys() == second.keys()
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


def test_an_average_does_not_share_memory_with_the_weights():
    first = replace(task(), weights=torch.tensor(PARAMS), averaging=True, directives=Directives(average=1.0))
    done = update_shard(first, [shard(0, 1.0, np.ones(8))])
    np.testing.assert_array_equal(done.average, params_of(done))
    assert not np.shares_memory(done.average.numpy(), params_of(done))


def test_the_order_of_arrival_changes_no_bit():
    generator = np.random.default_rng(0)
    shards = [shard(s, s + 0.5, generator.normal(size=8)) for s in range(3)]
    found = {params_of(update_shard(task(0, 8, ADAM), order)).tobytes() for order in permutations(shards)}
    assert len(found) == 1


def test_a_parameter_that_any_source_used_is_updated():
    shards = [shard(0, 1.0, [2] * 4 + [0] * 4, [True, False]), shard(1, 1.0, [0] * 8, [False, False])]
    decaying = OptimizerSpec(partial(torch.optim.SGD, lr=1.0, weight_decay=1.0))
    assert params_of(update_shard(task(optimizer=decaying), shards)).tolist() == [-1, -1, -1, -1, 4, 5, 6, 7]


def test_without_gradients_weights_and_state_stay():
    before = update_shard(task(optimizer=ADAM), [shard(0, 1.0, np.ones(8))]).state
    data = frame.join(messages.encode(before))
    done = update_shard(task(optimizer=ADAM), [], messages.decode(data))
    assert params_of(done).tolist() == PARAMS.tolist()
    assert frame.join(messages.encode(done.state)) == data


def test_an_empty_shard():
    assert params_of(update_shard(task(8, 8, ADAM), [shard(0, 1.0, []), shard(1, 1.0, [])])).shape == (0,)


# -- problems -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("index", "parameter"), [(0, "a"), (1, "a"), (2, "b")])
def test_a_gradient_that_is_not_finite_names_parameter_and_sources(bad, index, parameter):
    gradient = np.ones(4)
    gradient[index] = bad
    shards = [shard(5, 1.0, gradient), shard(1, 1.0, np.ones(4)), shard(3, 1.0, gradient)]
    with pytest.raises(ProblemError) as caught:
        update_shard(task(2, 6, iteration=4), shards)
    assert caught.value.problems == (NonFiniteGradient(4, parameter, (3, 5)),)


def test_a_huge_finite_gradient_is_fine():
    assert np.isfinite(params_of(update_shard(task(), [shard(0, 1.0, np.full(8, 3e38))]))).all()


# -- reports ------------------------------------------------------------------------------------

BUFFERS, COUNTERS = np.array([1, 2], np.float32), np.array([5], np.int64)


def report(source, weight=1.0, **buffers):
    return Report(source, 1, False, 0, 0, weight, weight, 0.5, {}, {}, buffers)


def combined(*reports):
    return combine_reports(reports, BUFFERS, COUNTERS)


def test_reports_come_in_source_order():
    found = combined(report(2), report(0), report(1, 0.0))
    assert [r["source"] for r in found.reports] == [0, 1, 2]
    assert found.buffers == {}


def test_buffers_are_averaged_by_weight_and_unchanged_ones_count():
    found = combined(
        report(0, 1.0, buffers=np.array([5, 6], np.float32)),
        report(1, 3.0),  # left its buffers at [1, 2]
        report(2, 0.0, buffers=np.array([99, 99], np.float32)),
    )
    assert found.buffers["buffers"].tolist() == [2, 3]


def test_the_order_of_reports_changes_no_bit():
    reports = [
        report(0, 0.5, buffers=np.array([0.1, 0.2], np.float32)),
        report(1, 1.5, buffers=np.array([0.3, 0.7], np.float32)),
        report(2, 1.0, buffers=np.array([0.9, 0.4], np.float32)),
    ]
    assert len({combined(*order).buffers["buffers"].tobytes() for order in permutations(reports)}) == 1


def test_counters_take_the_maximum():
    found = combined(report(0, counters=np.array([6])), report(1, counters=np.array([8])), report(2))
    assert found.buffers["counters"].tolist() == [8]
    assert "buffers" not in found.buffers


def test_sources_without_weight_change_no_buffer():
    assert combined(report(0, 0.0, buffers=np.array([9, 9], np.float32))).buffers == {}
