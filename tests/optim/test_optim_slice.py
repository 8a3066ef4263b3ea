from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import optim

from sparkdl import frame
from sparkdl.exceptions import OptimizerError
from sparkdl.layout import ParamLayout, lay_out
from sparkdl.optim import OptimizerSpec, SliceOptimizer, optimizer_spec

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
CUTS = {"1 slice": (0, 46), "3 slices": (0, 9, 31, 46)}
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


def train_whole(model, optimizer, used, dtype=torch.float32):
    """Reference: torch's optimizer on the whole model."""
    for gradient, mask in zip(gradients(dtype), used, strict=True):
        for spec, p, has_gradient in zip(LAYOUT.params, model.parameters(), mask, strict=True):
            part = gradient[spec.offset : spec.end].view(spec.shape)
            p.grad = part.clone() if has_gradient else None
        optimizer.step()
    return flatten(model)


def train_slices(spec, layout, cuts, used, dtype=torch.float32):
    """The same on slices, each rebuilt from its state frame in every step as tasks do."""
    flat = flatten(Model(dtype))
    states = [None] * (len(cuts) - 1)
    for gradient, mask in zip(gradients(dtype), used, strict=True):
        for n, (lo, hi) in enumerate(pairwise(cuts)):
            slice_ = SliceOptimizer(spec, layout, lo, hi, states[n])
            slice_.step(flat[lo:hi], gradient[lo:hi].clone(), mask)
            states[n] = frame.unpack(frame.join(slice_.state_frame()))
    return flat, states


@pytest.mark.parametrize("used", [ALWAYS, SOMETIMES], ids=["always used", "sometimes used"])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("factory", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_slices_are_bit_equal_to_the_whole(factory, cuts, used):
    model = Model()
    reference = factory(model.parameters())
    expected = train_whole(model, reference, used)
    found, states = train_slices(OptimizerSpec(factory), LAYOUT, cuts, used)
    for spec in LAYOUT.params:
        assert torch.equal(found[spec.offset : spec.end], expected[spec.offset : spec.end]), spec.name
    compare_states(reference, model, states)


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
    found, _ = train_slices(OptimizerSpec(OPTIMIZERS[name]), LAYOUT, CUTS["3 slices"], ALWAYS, torch.float64)
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
    found, _ = train_slices(spec, layout, cuts, used)
    assert torch.equal(found, expected)


# -- runs ---------------------------------------------------------------------------------------


def runs_of(optimizer):
    return [(r.start, r.stop) for r in optimizer.runs]


def make(start=0, stop=46, factory=optim.Adam):
    return SliceOptimizer(OptimizerSpec(factory), LAYOUT, start, stop)


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


def test_what_lies_outside_of_the_slice_splits_nothing():
    optimizer = make(22, 28)
    step(optimizer, [False, True, False, False, False])
    assert runs_of(optimizer) == [(22, 28)]


def test_an_empty_slice_does_nothing():
    optimizer = make(46, 46)
    step(optimizer, [True] * 5)
    state = frame.unpack(frame.join(optimizer.state_frame()))
    assert state.meta == {"kind": "state", "runs": []}


def test_parameters_without_elements_are_skipped():
    layout = ParamLayout(lay_out([("a", (2,), 0), ("none", (0,), 1), ("b", (2,), 0)]))
    optimizer = SliceOptimizer(OptimizerSpec(optim.SGD, ({"lr": 1.0}, {"lr": 2.0})), layout, 0, 4)
    assert runs_of(optimizer) == [(0, 4)]
    weights = torch.ones(4)
    optimizer.step(weights, torch.ones(4), np.array([True, False, True]))
    assert weights.tolist() == [0, 0, 0, 0]


def test_the_state_frame_references_state_and_reading_it_copies():
    optimizer = make()
    step(optimizer, [True] * 5)
    data = frame.join(optimizer.state_frame())
    restored = SliceOptimizer(OptimizerSpec(optim.Adam), LAYOUT, 0, 46, frame.unpack(data))
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
    restored = SliceOptimizer(OptimizerSpec(Counting), LAYOUT, 0, 46, state)
    assert restored.runs[0].state == {"extra": value}


@pytest.mark.parametrize("value", [[1], {"a": 1}, np.zeros(1)], ids=repr)
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
