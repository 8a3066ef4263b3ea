import gc
import weakref
from collections import deque
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import optim

from sparkdl.exceptions import OptimizerError
from sparkdl.optim import LAMB, LARS, LBFGS, OptimizerSpec, ShardOptimizer, optimizer_spec
from sparkdl.optim.reduction import add_up, drive
from sparkdl.optim.shard import run as shard_run
from sparkdl.wire import frame
from sparkdl.wire.held import Owned, Shared
from sparkdl.wire.layout import ParamLayout, lay_out

OPTIMIZERS = {
    "SGD": partial(optim.SGD, lr=0.1),
    "SGD momentum": partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.1),
    "SGD nesterov": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": partial(optim.Adam, lr=0.01, weight_decay=0.01),
    "Adam amsgrad": partial(optim.Adam, lr=0.01, amsgrad=True),
    "AdamW": partial(optim.AdamW, lr=0.01, weight_decay=0.1),
    "Adamax": partial(optim.Adamax, lr=0.01, weight_decay=0.01),
    "NAdam": partial(optim.NAdam, lr=0.01, weight_decay=0.01),
    "RAdam": partial(optim.RAdam, lr=0.01, weight_decay=0.01),
    "RMSprop": partial(optim.RMSprop, lr=0.01, weight_decay=0.01),
    "RMSprop centered": partial(optim.RMSprop, lr=0.01, centered=True, momentum=0.9),
    "Rprop": partial(optim.Rprop, lr=0.01),
    "Adagrad": partial(optim.Adagrad, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.1, weight_decay=0.01),
    "Adadelta": partial(optim.Adadelta, lr=1.0, weight_decay=0.01),
    "ASGD": partial(optim.ASGD, lr=0.1, t0=2, weight_decay=0.01),
}
SHAPES = [(3, 7), (7,), (), (2, 3, 2), (5,)]
LAYOUT = ParamLayout(lay_out([(f"p{i}", shape, 0) for i, shape in enumerate(SHAPES)]))
CUTS = {"1 shard": (0, 46), "3 shards": (0, 9, 31, 46)}
STEPS = 6
ALWAYS = np.ones((STEPS, len(SHAPES)), np.bool_)
# p0 is used later, p1 never, p2 now and then, p3 not any more; p4 always.
SOMETIMES = np.array([[t >= 3, False, t % 2, t < 2, True] for t in range(STEPS)], np.bool_)


class Model(torch.nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for i, shape in enumerate(SHAPES):
            value = torch.randn(shape, generator=generator, dtype=dtype)
            self.register_parameter(f"p{i}", torch.nn.Parameter(value))


def gradients(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(LAYOUT.numel, generator=generator, dtype=dtype) for _ in range(STEPS)]


def flatten(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def shared(state):
    return None if state is None else Shared(state)


def train_whole(model, optimizer, used, dtype=torch.float32):
    """Reference: torch's optimizer on the whole model."""
    for gradient, mask in zip(gradients(dtype), used, strict=True):
        for spec, p, has_gradient in zip(LAYOUT.params, model.parameters(), mask, strict=True):
            part = gradient[spec.offset : spec.end].view(spec.shape)
            p.grad = part.clone() if has_gradient else None
        optimizer.step()
    return flatten(model)


def train_shards(spec, layout, cuts, used, dtype=torch.float32):
    """The same on shards, each rebuilt from its state frame in every step as tasks do."""
    flat = flatten(Model(dtype))
    states = [None] * (len(cuts) - 1)
    for gradient, mask in zip(gradients(dtype), used, strict=True):
        for n, (lo, hi) in enumerate(pairwise(cuts)):
            shard_ = ShardOptimizer(spec, layout, lo, hi, shared(states[n]))
            shard_.step(flat[lo:hi], gradient[lo:hi].clone(), mask)
            states[n] = frame.unpack(frame.join(shard_.state_frame()))
    return flat, states


@pytest.mark.parametrize("used", [ALWAYS, SOMETIMES], ids=["always used", "sometimes used"])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("factory", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_shards_are_bit_equal_to_the_whole(factory, cuts, used):
    model = Model()
    reference = factory(model.parameters())
    expected = train_whole(model, reference, used)
    found, states = train_shards(OptimizerSpec(factory), LAYOUT, cuts, used)
    for spec in LAYOUT.params:
        assert torch.equal(found[spec.offset : spec.end], expected[spec.offset : spec.end]), spec.name
    compare_states(reference, model, states)


@pytest.mark.parametrize("used", [ALWAYS, SOMETIMES], ids=["always used", "sometimes used"])
@pytest.mark.parametrize("factory", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_blocks_of_long_runs_are_bit_equal_to_the_whole(factory, used, monkeypatch):
    monkeypatch.setattr(shard_run, "BLOCK", 4)
    model = Model()
    reference = factory(model.parameters())
    expected = train_whole(model, reference, used)
    found, states = train_shards(OptimizerSpec(factory), LAYOUT, CUTS["3 shards"], used)
    assert torch.equal(found, expected)
    compare_states(reference, model, states)


def test_state_of_blocks_stays_where_it_is(monkeypatch):
    monkeypatch.setattr(shard_run, "BLOCK", 4)
    optimizer = make()
    step(optimizer, [True] * 5)
    before = optimizer.runs[0].state["exp_avg"]
    old = before.clone()
    step(optimizer, [True] * 5)
    after = optimizer.runs[0].state["exp_avg"]
    assert after is before
    assert not torch.equal(after, old)
    assert int(optimizer.runs[0].state["step"]) == 2


class Replacing(optim.Optimizer):
    """Puts a new tensor in place of its state in each step, in double precision from the second one on."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["sum"] = state["sum"].double() + p.grad if state else p.grad.clone()


def test_a_state_that_is_replaced_in_blocks_is_kept(monkeypatch):
    monkeypatch.setattr(shard_run, "BLOCK", 4)
    optimizer = make(factory=Replacing)
    for count in (1, 2, 3):
        step(optimizer, [True] * 5)
        found = optimizer.runs[0].state["sum"]
        assert found.dtype == (torch.float32 if count == 1 else torch.float64)
        assert found.tolist() == [count] * 46


def compare_states(reference, model, states):
    """Moments and step counts of every parameter are those that torch keeps for it."""
    parameters = list(model.parameters())
    for state in states:
        for index, (start, stop, _, _) in enumerate(state.meta["runs"]):
            names = {name.removeprefix(f"{index}.") for name in state.arrays if name.startswith(f"{index}.")}
            for spec, p in zip(LAYOUT.params, parameters, strict=True):
                lo, hi = max(start, spec.offset), min(stop, spec.end)
                if lo >= hi:
                    continue
                expected = reference.state.get(p, {})
                assert names == set(expected), spec.name
                for name in names:
                    value = state.arrays[f"{index}.{name}"]
                    if value.ndim:
                        value, wanted = value[lo - start : hi - start], expected[name].flatten()
                        wanted = wanted[lo - spec.offset : hi - spec.offset]
                    else:
                        wanted = expected[name]
                    np.testing.assert_array_equal(value, wanted.numpy(), err_msg=f"{spec.name} {name}")


@pytest.mark.parametrize("name", ["SGD nesterov", "AdamW"])
def test_double_precision(name):
    model = Model(torch.float64)
    expected = train_whole(model, OPTIMIZERS[name](model.parameters()), ALWAYS, torch.float64)
    found, _ = train_shards(OptimizerSpec(OPTIMIZERS[name]), LAYOUT, CUTS["3 shards"], ALWAYS, torch.float64)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("used", [ALWAYS, SOMETIMES], ids=["always used", "sometimes used"])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize(
    "cls", [partial(optim.SGD, momentum=0.9), optim.Adam, partial(optim.RMSprop, momentum=0.5)], ids=repr
)
def test_parameter_groups_of_an_optimizer_instance(cls, cuts, used):
    def build(model):
        p = list(model.parameters())
        groups = [
            {"params": [p[0], p[3]], "lr": 0.1, "weight_decay": 0.1},
            {"params": [p[1], p[2], p[4]], "lr": 0.001},
        ]
        return cls(groups, lr=1.0)

    model = Model()
    expected = train_whole(model, build(model), used)
    model = Model()
    spec, group_of = optimizer_spec(build(model), model)
    groups = [group_of(p) for p in model.parameters()]
    assert groups == [0, 1, 1, 0, 1]
    layout = ParamLayout(lay_out([(s.name, s.shape, g) for s, g in zip(LAYOUT.params, groups, strict=True)]))
    found, _ = train_shards(spec, layout, cuts, used)
    assert torch.equal(found, expected)


# -- runs ---------------------------------------------------------------------------------------


def runs_of(optimizer):
    return [(r.start, r.stop) for r in optimizer.runs]


def make(start=0, stop=46, factory=optim.Adam):
    return ShardOptimizer(OptimizerSpec(factory), LAYOUT, start, stop)


def step(optimizer, used):
    size = optimizer.stop - optimizer.start
    optimizer.step(torch.ones(size), torch.ones(size), np.array(used))


def test_runs_split_only_where_parameters_differ_and_stay_split():
    optimizer = make(2, 40)
    assert runs_of(optimizer) == [(2, 40)]
    step(optimizer, [True] * 5)
    assert runs_of(optimizer) == [(2, 40)]
    step(optimizer, [True, True, False, True, True])
    assert runs_of(optimizer) == [(2, 28), (28, 29), (29, 40)]
    assert [int(r.state["step"]) for r in optimizer.runs] == [2, 1, 2]
    step(optimizer, [True] * 5)
    assert runs_of(optimizer) == [(2, 28), (28, 29), (29, 40)]


def test_what_lies_outside_of_the_shard_splits_nothing():
    optimizer = make(22, 28)
    step(optimizer, [False, True, False, False, False])
    assert runs_of(optimizer) == [(22, 28)]


def test_an_empty_shard_does_nothing():
    optimizer = make(46, 46)
    step(optimizer, [True] * 5)
    state = frame.unpack(frame.join(optimizer.state_frame()))
    assert state.meta == {"kind": "state", "runs": []}


def test_parameters_without_elements_are_skipped():
    layout = ParamLayout(lay_out([("a", (2,), 0), ("none", (0,), 1), ("b", (2,), 0)]))
    optimizer = ShardOptimizer(OptimizerSpec(optim.SGD, ({"lr": 1.0}, {"lr": 2.0})), layout, 0, 4)
    assert runs_of(optimizer) == [(0, 4)]
    weights = torch.ones(4)
    optimizer.step(weights, torch.ones(4), np.array([True, False, True]))
    assert weights.tolist() == [0, 0, 0, 0]


def test_the_state_frame_references_state_and_reading_it_copies():
    optimizer = make()
    step(optimizer, [True] * 5)
    data = frame.join(optimizer.state_frame())
    restored = ShardOptimizer(OptimizerSpec(optim.Adam), LAYOUT, 0, 46, Shared(frame.unpack(data)))
    step(restored, [True] * 5)
    assert int(optimizer.runs[0].state["step"]) == 1
    assert int(restored.runs[0].state["step"]) == 2
    assert frame.join(optimizer.state_frame()) == data


class Counting(optim.SGD):
    """Keeps a state of any kind."""

    value = None

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["extra"] = self.value


@pytest.mark.parametrize("value", [True, 3, 2.5, "text", None, float("inf")])
def test_plain_scalars_are_kept_as_state(value):
    optimizer = make(factory=type("Own", (Counting,), {"value": value}))
    step(optimizer, [True] * 5)
    state = frame.unpack(frame.join(optimizer.state_frame()))
    restored = ShardOptimizer(OptimizerSpec(Counting), LAYOUT, 0, 46, Shared(state))
    assert restored.runs[0].state == {"extra": value}


KEPT = [[1, 2.5], (1, None), {"a": [1]}, deque([1, 2], maxlen=2), np.arange(3.0)]


@pytest.mark.parametrize("value", KEPT, ids=repr)
def test_lists_and_dicts_are_kept_as_state(value):
    optimizer = make(factory=type("Own", (Counting,), {"value": value}))
    step(optimizer, [True] * 5)
    state = frame.unpack(frame.join(optimizer.state_frame()))
    found = ShardOptimizer(OptimizerSpec(Counting), LAYOUT, 0, 46, Shared(state)).runs[0].state["extra"]
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_tensors_in_lists_are_kept_with_their_dtype():
    value = [
        torch.arange(4.0).view(2, 2),
        {"half": torch.ones(3, dtype=torch.bfloat16)},
        torch.tensor([1 + 2j]),
    ]
    optimizer = make(factory=type("Own", (Counting,), {"value": value}))
    step(optimizer, [True] * 5)
    state = frame.unpack(frame.join(optimizer.state_frame()))
    found = ShardOptimizer(OptimizerSpec(Counting), LAYOUT, 0, 46, Shared(state)).runs[0].state["extra"]
    assert torch.equal(found[0], value[0])
    assert torch.equal(found[1]["half"], value[1]["half"])
    assert torch.equal(found[2], value[2])
    with pytest.raises(OptimizerError, match="'extra' is a list, which cannot be cut"):
        optimizer.state_frame_of(3, 20)


@pytest.mark.parametrize(
    "value", [{1}, [object()], torch.ones(2).to_sparse()], ids=["set", "object", "sparse"]
)
def test_other_objects_cannot_be_kept(value):
    optimizer = make(factory=type("Own", (Counting,), {"value": value}))
    step(optimizer, [True] * 5)
    with pytest.raises(OptimizerError, match=f"Own keeps a {type(value).__name__} as state 'extra'"):
        optimizer.state_frame()


class OneElementCounter(optim.SGD):
    """Counts steps in a tensor of shape (1,), as some third-party optimizers do."""

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p].setdefault("step", torch.zeros(1)).add_(1)


def test_state_of_another_shape_than_the_run_is_copied_when_runs_split():
    optimizer = make(factory=OneElementCounter)
    step(optimizer, [True] * 5)
    step(optimizer, [True, False, True, True, True])
    assert [r.state["step"].tolist() for r in optimizer.runs] == [[2], [1], [2]]


# -- sums over all shards -----------------------------------------------------------------------

REDUCING = {
    "LARS": partial(LARS, lr=0.5, weight_decay=0.01),
    "LAMB": partial(LAMB, lr=0.01, weight_decay=0.01),
    "LBFGS": partial(LBFGS, lr=0.5, history_size=3),
}
MORE_CUTS = CUTS | {"cut parameters": (0, 5, 6, 21, 25, 46), "empty shards": (0, 0, 29, 46, 46)}


def train_together(spec, cuts, used, layout=LAYOUT, hyper=((),) * STEPS):
    """All shards in lock step, each rebuilt from its state frame in every step as tasks do."""
    flat = flatten(Model())
    states = [None] * (len(cuts) - 1)
    for gradient, mask, values in zip(gradients(), used, hyper, strict=True):
        bounds = zip(pairwise(cuts), states, strict=True)
        shards = [ShardOptimizer(spec, layout, lo, hi, shared(state)) for (lo, hi), state in bounds]
        drive([s.update(flat[s.start : s.stop], gradient[s.start : s.stop], mask, values) for s in shards])
        states = [frame.unpack(frame.join(s.state_frame())) for s in shards]
    return flat, states


@pytest.mark.parametrize("used", [ALWAYS, SOMETIMES], ids=["always used", "sometimes used"])
@pytest.mark.parametrize("cuts", MORE_CUTS.values(), ids=MORE_CUTS)
@pytest.mark.parametrize("factory", REDUCING.values(), ids=REDUCING)
def test_reducing_optimizers_on_shards_are_those_on_the_whole(factory, cuts, used):
    model = Model()
    expected = train_whole(model, factory(model.parameters()), used)
    found, states = train_together(OptimizerSpec(factory), cuts, used)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    if len(cuts) == 2 and factory.func is not LBFGS:
        assert torch.equal(found, expected)
        compare_states_of_used(states)


def compare_states_of_used(states):
    runs = [(start, stop) for start, stop, _, _ in states[0].meta["runs"]]
    assert runs == [(p.offset, p.end) for p in LAYOUT.params]


def sums_of(factory, start, stop):
    optimizer = ShardOptimizer(OptimizerSpec(factory, ({},)), LAYOUT, start, stop)
    size = stop - start
    steps = optimizer.update(torch.ones(size), torch.ones(size), np.array([True] * 5))
    return optimizer, steps, next(steps)


def test_sums_per_parameter_have_a_row_for_each_of_the_layout():
    optimizer, _, sums = sums_of(REDUCING["LAMB"], 5, 24)
    assert runs_of(optimizer) == [(5, 21), (21, 24)]
    assert sums.shape == (5, 2)
    assert sums.dtype == np.float64
    np.testing.assert_allclose(sums[:, 0], [16, 3, 0, 0, 0], rtol=1e-6)


def test_a_shard_without_weights_goes_along():
    for start, stop in ((46, 46), (0, 0)):
        optimizer, steps, sums = sums_of(REDUCING["LAMB"], start, stop)
        assert runs_of(optimizer) == [(stop, stop)]
        assert sums.tolist() == [[0, 0]] * 5
        with pytest.raises(StopIteration):
            steps.send(np.ones((5, 2)))
        optimizer.state_frame()


def test_sums_of_all_weights_have_the_same_shape_on_all_shards():
    shapes = {sums_of(REDUCING["LBFGS"], lo, hi)[2].shape for lo, hi in ((0, 9), (9, 46), (46, 46))}
    assert len(shapes) == 1


def test_an_update_may_be_run_again_from_its_beginning():
    results = []
    for replays in (0, 2):
        weights = torch.ones(20)
        for _ in range(replays):
            _, steps, _ = sums_of(REDUCING["LAMB"], 5, 25)
            steps.close()
        optimizer = ShardOptimizer(OptimizerSpec(REDUCING["LAMB"]), LAYOUT, 5, 25)
        optimizer.step(weights, torch.ones(20), np.ones(5, np.bool_))
        results.append((weights, frame.join(optimizer.state_frame())))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_totals_are_added_in_the_order_of_the_shards():
    a, b, c = (np.array([x]) for x in (1e16, 1.0, -1e16))
    assert add_up([a, b, c]).tolist() == [0]
    assert add_up([a, c, b]).tolist() == [1]
    assert a.tolist() == [1e16]


def test_shards_out_of_step_are_an_error():
    whole = ShardOptimizer(OptimizerSpec(LAMB), LAYOUT, 0, 46)
    used = np.ones(5, np.bool_)
    updates = [o.update(torch.ones(46), torch.ones(46), used) for o in (whole, make())]
    with pytest.raises(RuntimeError, match="1 of 2 shards wait for totals"):
        drive(updates)


# -- several optimizers and schedules -----------------------------------------------------------

SEVERAL = {
    "elementwise": (optim.Adam, partial(optim.SGD, lr=0.1, momentum=0.9)),
    "one reduces": (REDUCING["LAMB"], partial(optim.SGD, lr=0.1, momentum=0.9)),
    "the other reduces": (optim.Adam, REDUCING["LBFGS"]),
    "both reduce": (REDUCING["LARS"], REDUCING["LBFGS"]),
}


@pytest.mark.parametrize("used", [ALWAYS, SOMETIMES], ids=["always used", "sometimes used"])
@pytest.mark.parametrize("cuts", MORE_CUTS.values(), ids=MORE_CUTS)
@pytest.mark.parametrize(("first", "second"), SEVERAL.values(), ids=SEVERAL)
def test_several_optimizers_on_shards(first, second, cuts, used):
    own = [0, 0, 1, 1, 0]
    model = Model()
    params = list(model.parameters())
    optimizers = [
        factory([p for p, i in zip(params, own, strict=True) if i == n])
        for n, factory in enumerate((first, second))
    ]

    class Both:
        def step(self):
            for optimizer in optimizers:
                optimizer.step()

    expected = train_whole(model, Both(), used)
    layout = ParamLayout(lay_out([(s.name, s.shape, g) for s, g in zip(LAYOUT.params, own, strict=True)]))
    spec = OptimizerSpec(first, others=(OptimizerSpec(second),))
    found, _ = train_together(spec, cuts, used, layout)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    if spec.reductions == 0:
        assert torch.equal(found, expected)


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("tensor", [False, True], ids=["number", "tensor"])
def test_hyper_parameters_of_a_schedule(cuts, tensor):
    rate = torch.tensor(0.01) if tensor else 0.01

    def groups(p):
        return [{"params": p[::2]}, {"params": p[1::2], "lr": 0.1}]

    model = Model()
    reference = optim.Adam(groups(list(model.parameters())), lr=rate.clone() if tensor else rate)
    spec = OptimizerSpec(partial(optim.Adam, lr=rate), ({}, {"lr": 0.1}))
    hyper = []
    shadows = spec.shadow()
    for optimizer in (reference, shadows[0]):
        schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        optimizer.register_step_post_hook(lambda *_, schedule=schedule: schedule.step())
    for t in range(STEPS):
        hyper.append(tuple({**h, "betas": (0.5, 0.9 + 0.01 * t)} for h in spec.hyper_of(shadows)))
        shadows[0].step()
    steps = iter(hyper)

    class Scheduled:
        def step(self):
            for group, values in zip(reference.param_groups, next(steps), strict=True):
                group["betas"] = values["betas"]
            reference.step()

    expected = train_whole(model, Scheduled(), ALWAYS)
    layout = ParamLayout(lay_out([(s.name, s.shape, i % 2) for i, s in enumerate(LAYOUT.params)]))
    found, _ = train_together(spec, cuts, ALWAYS, layout, hyper)
    assert torch.equal(found, expected)
    assert float(rate) == pytest.approx(0.01)


# -- sparse gradients ---------------------------------------------------------------------------

TABLES = ParamLayout(lay_out([("a", (6, 3), 0), ("b", (4, 2), 0)]))


def sparse_case(t):
    generator = torch.Generator().manual_seed(t)
    rows = [torch.rand(spec.shape[0], generator=generator) < 0.5 for spec in TABLES.params]
    dense = [
        torch.randn(spec.shape, generator=generator) * mask[:, None]
        for spec, mask in zip(TABLES.params, rows, strict=True)
    ]
    dense[0][rows[0], 1] = 0  # an element of a touched row may well be zero
    sparse = []
    for gradient, mask in zip(dense, rows, strict=True):
        index = mask.nonzero().T
        sparse.append(torch.sparse_coo_tensor(index, gradient[mask], gradient.shape, check_invariants=False))
    return dense, sparse, {i: mask.numpy() for i, mask in enumerate(rows)}


@pytest.mark.parametrize("given", ["rows", "one table", "nothing"])
@pytest.mark.parametrize("cuts", [(0, 26), (0, 4, 17, 20, 26), (0, 1, 2, 26)], ids=str)
def test_sparse_adam_is_bit_equal_to_torchs_on_rows(cuts, given):
    factory = partial(optim.SparseAdam, lr=0.1)
    generator = torch.Generator().manual_seed(9)
    params = [torch.nn.Parameter(torch.randn(spec.shape, generator=generator)) for spec in TABLES.params]
    flat = torch.cat([p.detach().flatten() for p in params])
    reference = factory(params)
    states = [None] * (len(cuts) - 1)
    for t in range(5):
        dense, sparse, touched = sparse_case(t)
        for p, d, s, index in zip(params, dense, sparse, range(2), strict=True):
            by_row = given == "rows" or (given == "one table" and index == 0)
            p.grad = s if by_row else d.to_sparse()
        reference.step()
        touched = {"rows": touched, "one table": {0: touched[0]}, "nothing": None}[given]
        gradient = torch.cat([d.flatten() for d in dense])
        for n, (lo, hi) in enumerate(pairwise(cuts)):
            optimizer = ShardOptimizer(OptimizerSpec(factory), TABLES, lo, hi, shared(states[n]))
            optimizer.step(flat[lo:hi], gradient[lo:hi], np.ones(2, np.bool_), touched=touched)
            states[n] = frame.unpack(frame.join(optimizer.state_frame()))
    assert torch.equal(flat, torch.cat([p.detach().flatten() for p in params]))


def test_sparse_adam_beside_another_optimizer():
    layout = ParamLayout(lay_out([("table", (3, 2), 0), ("weight", (2,), 1)]))
    spec = OptimizerSpec(
        partial(optim.SparseAdam, lr=1.0), others=(OptimizerSpec(partial(optim.SGD, lr=1.0)),)
    )
    optimizer = ShardOptimizer(spec, layout, 0, 8)
    weights = torch.zeros(8)
    gradient = torch.tensor([0.0, 0, 5, 5, 0, 0, 1, 2])
    optimizer.step(weights, gradient, np.ones(2, np.bool_))
    torch.testing.assert_close(weights, torch.tensor([0.0, 0, -1, -1, 0, 0, -1, -2]))


@pytest.mark.parametrize("name", ["SGD momentum", "Adam"])
def test_state_that_goes_from_step_to_step_in_one_process_makes_no_chain(name):
    spec, layout = OptimizerSpec(OPTIMIZERS[name]), LAYOUT
    weights, gradient = torch.zeros(layout.numel), torch.ones(layout.numel)
    held, read = None, []
    for _ in range(5):
        optimizer = ShardOptimizer(spec, layout, 0, layout.numel, held)
        optimizer.step(weights, gradient, ALWAYS[0])
        found = frame.unpack(optimizer.state_frame(), writable=True)
        read.append([weakref.ref(array) for array in found.arrays.values()])
        held = Owned(found)
    del optimizer, found
    gc.collect()
    alive = [any(array() is not None for array in arrays) for arrays in read]
    assert alive == [False] * 4 + [True]


@pytest.mark.parametrize("cls", [optim.Adam, optim.Adagrad, optim.SGD])
def test_an_optimizer_is_built_once_for_weights_that_stay_where_they_are(cls):
    built = []

    def factory(params):
        built.append(cls(params, lr=0.1))
        return built[-1]

    layout = ParamLayout(lay_out([("weight", (9,), 0)]))
    optimizer = ShardOptimizer(OptimizerSpec(factory), layout, 0, 9)
    expected = torch.nn.Parameter(torch.arange(9.0))
    reference = cls([expected], lr=0.1)
    weights = expected.detach().clone()
    built.clear()
    for rate in (None, 0.5, None, None):  # what one step is given is not that of the next
        values = torch.linspace(-1, 1, 9) * (rate or 2)
        reference.param_groups[0]["lr"] = rate or 0.1
        expected.grad = values.clone()
        reference.step()
        memory = values.numpy().copy()
        alive = weakref.ref(memory)
        optimizer.step(
            weights, torch.from_numpy(memory), np.ones(1, np.bool_), [{"lr": rate}] if rate else []
        )
        assert torch.equal(weights, expected)
        del memory
        gc.collect()
        assert alive() is None  # nobody holds it until the next step
    assert len(built) == 1
    moved = weights.clone()
    optimizer.step(moved, torch.ones(9), np.ones(1, np.bool_))
    assert torch.equal(weights, expected)
    assert not torch.equal(moved, expected)
