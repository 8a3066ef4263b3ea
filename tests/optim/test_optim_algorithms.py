"""Each optimizer of sparkdl against a reference on whole vectors, and on stretches of them."""

import copy
import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import optim

from sparkdl.optim import LAMB, LARS, LBFGS, AdagradDecay, Ftrl
from sparkdl.optim.reducing import ReducingOptimizer

SHAPES = [(3, 4), (5,), (), (2, 2, 3)]
STEPS = 20


def parameters(dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.nn.Parameter(scale * torch.randn(shape, generator=generator, dtype=dtype)) for shape in SHAPES
    ]


def gradients(steps=STEPS, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(s, generator=generator, dtype=dtype) for s in SHAPES] for _ in range(steps)]


def set_gradients(params, values):
    for p, value in zip(params, values, strict=True):
        p.grad = None if value is None else value.clone()


def train(params, optimizer, steps):
    for values in steps:
        set_gradients(params, values)
        optimizer.step()
    return flatten(params)


def flatten(params):
    return torch.cat([p.detach().flatten() for p in params])


def arrays(tensors):
    return [t.detach().numpy().copy() for t in tensors]


def assert_near(found, expected, rtol=1e-11):
    """Double precision: what differs is the order of a few roundings."""
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b, rtol=rtol, atol=1e-13)


# -- Ftrl ---------------------------------------------------------------------------------------


def ftrl_reference(weights, steps, lr, power, initial, l1, l2, shrinkage):
    """TensorFlow's ApplyFtrlV2, with z of the first step as documented."""
    results = []
    for index, w in enumerate(weights):
        n = np.full_like(w, initial)
        z = -(n**-power) / lr * w
        for values in steps:
            g = values[index].numpy()
            n_new = n + g * g
            z = z + g + 2 * shrinkage * w - (n_new**-power - n**-power) / lr * w
            quadratic = n_new**-power / lr + 2 * l2
            w = np.where(np.abs(z) > l1, (np.sign(z) * l1 - z) / quadratic, 0.0)
            n = n_new
        results.append(w)
    return results


@pytest.mark.parametrize("scale", [0.0, 1.0], ids=["from zero", "from anywhere"])
@pytest.mark.parametrize("power", [-0.5, -0.4, 0.0])
@pytest.mark.parametrize("penalties", [(0, 0, 0), (0.5, 0.1, 0.01)], ids=["plain", "penalties"])
def test_ftrl(scale, power, penalties):
    params = parameters(scale=scale)
    expected = ftrl_reference(arrays(params), gradients(), 0.2, power, 0.3, *penalties)
    l1, l2, shrinkage = penalties
    train(params, Ftrl(params, 0.2, power, 0.3, l1=l1, l2=l2, l2_shrinkage=shrinkage), gradients())
    assert_near(params, expected)


def test_ftrl_minimizes_what_it_says():
    """McMahan et al.: argmin of g·w + ½ Σ σ (w - w_s)² + l1 |w| + l2 w² over all steps so far."""
    lr, initial, l1, l2 = 0.2, 0.1, 0.7, 0.3
    p = torch.nn.Parameter(torch.linspace(-2, 2, 9, dtype=torch.float64))
    optimizer = Ftrl([p], lr, initial_accumulator_value=initial, l1=l1, l2=l2)
    n, total = torch.full((9,), initial, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)
    centres = [(n.sqrt() / lr, p.detach().clone())]
    generator = torch.Generator().manual_seed(2)
    for _ in range(8):
        gradient = torch.randn(9, generator=generator, dtype=torch.float64)
        rate_before, n = n.sqrt() / lr, n + gradient**2
        centres.append((n.sqrt() / lr - rate_before, p.detach().clone()))
        total += gradient
        p.grad = gradient
        optimizer.step()

    def objective(w):
        proximal = sum(0.5 * sigma * (w - centre) ** 2 for sigma, centre in centres)
        return total * w + proximal + l1 * w.abs() + l2 * w**2

    found = p.detach()
    for change in (1e-3, -1e-3, 0.1, -0.1):
        assert (objective(found + change) > objective(found)).all()


def test_ftrl_without_penalties_is_adagrad():
    ours, theirs = parameters(), parameters()
    train(ours, Ftrl(ours, lr=0.1), gradients())
    train(theirs, optim.Adagrad(theirs, lr=0.1, initial_accumulator_value=0.1, eps=0), gradients())
    assert_near(ours, arrays(theirs))


def test_ftrl_with_power_zero_is_sgd():
    ours, theirs = parameters(), parameters()
    train(ours, Ftrl(ours, lr=0.1, lr_power=0.0), gradients())
    train(theirs, optim.SGD(theirs, lr=0.1), gradients())
    assert_near(ours, arrays(theirs))


def test_ftrl_follows_a_schedule():
    ours, theirs = parameters(), parameters()
    a = Ftrl(ours, lr=0.1)
    b = optim.Adagrad(theirs, lr=0.1, initial_accumulator_value=0.1, eps=0)
    for t, values in enumerate(gradients()):
        for params, optimizer in ((ours, a), (theirs, b)):
            optimizer.param_groups[0]["lr"] = 0.01 * (t % 5 + 1)
            train(params, optimizer, [values])
    assert_near(ours, arrays(theirs))


def test_ftrl_with_learning_rate_zero_changes_nothing():
    params = parameters()
    before = flatten(params)
    optimizer = Ftrl(params, lr=0.0)
    assert torch.equal(train(params, optimizer, gradients()), before)
    assert not optimizer.state


def test_ftrl_weights_become_zero():
    params = parameters(torch.float32, scale=0.1)
    flat = train(params, Ftrl(params, lr=0.1, l1=1e3), gradients(dtype=torch.float32))
    assert torch.equal(flat, torch.zeros_like(flat))


# -- AdagradDecay -------------------------------------------------------------------------------


def test_adagrad_decay_without_decay_is_adagrad():
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    steps = gradients(dtype=torch.float32)
    found = train(ours, AdagradDecay(ours, lr=0.1, decay_step=1, decay_rate=1.0), steps)
    reference = optim.Adagrad(theirs, lr=0.1, initial_accumulator_value=0.1, eps=0)
    assert torch.equal(found, train(theirs, reference, steps))


def test_adagrad_decay():
    params = parameters()
    expected = arrays(params)
    for index, w in enumerate(expected):
        v = np.full_like(w, 0.6)
        for t, values in enumerate(gradients()):
            if t in (4, 8, 12, 16):
                v = np.maximum(v * 0.2, 0.6)
            g = values[index].numpy()
            v = v + g * g
            w = w - 0.1 * g / np.sqrt(v)
        expected[index] = w
    train(params, AdagradDecay(params, 0.1, 0.6, decay_step=4, decay_rate=0.2), gradients())
    assert_near(params, expected)


def test_adagrad_decay_has_a_floor():
    p = torch.nn.Parameter(torch.zeros(3))
    optimizer = AdagradDecay([p], 0.1, 0.5, decay_step=1, decay_rate=0.1)
    train([p], optimizer, [[torch.ones(3)]] + [[torch.zeros(3)]] * 2)
    assert optimizer.state[p]["sum"].tolist() == [0.5] * 3
    assert optimizer.state[p]["step"] == 3


# -- LARS ---------------------------------------------------------------------------------------


def lars_reference(weights, steps, lr, momentum, decay, trust, eps, nesterov):
    results = []
    for index, w in enumerate(weights):
        v = np.zeros_like(w)
        for values in steps:
            g = values[index].numpy()
            norm, gradient_norm = np.sqrt(np.sum(w * w)), np.sqrt(np.sum(g * g))
            ratio = trust * norm / (gradient_norm + decay * norm + eps) if norm * gradient_norm > 0 else 1.0
            change = lr * ratio * (g + decay * w)
            v = momentum * v + change
            w = w - (momentum * v + change if nesterov else v)
        results.append(w)
    return results


@pytest.mark.parametrize("nesterov", [False, True], ids=["heavy ball", "nesterov"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("scale", [0.0, 1.0], ids=["from zero", "from anywhere"])
def test_lars(nesterov, decay, scale):
    params = parameters(scale=scale)
    expected = lars_reference(arrays(params), gradients(), 2.0, 0.9, decay, 0.02, 1e-3, nesterov)
    optimizer = LARS(params, 2.0, 0.9, decay, trust_coefficient=0.02, eps=1e-3, nesterov=nesterov)
    train(params, optimizer, gradients())
    assert_near(params, expected)


def test_lars_without_momentum_keeps_nothing():
    params = parameters()
    expected = lars_reference(arrays(params), gradients(), 2.0, 0.0, 0.1, 0.001, 1e-8, False)
    optimizer = LARS(params, 2.0, momentum=0, weight_decay=0.1)
    train(params, optimizer, gradients())
    assert_near(params, expected)
    assert not optimizer.state


@pytest.mark.parametrize("nesterov", [False, True], ids=["heavy ball", "nesterov"])
def test_lars_without_adaptation_is_sgd(nesterov):
    ours, theirs = parameters(), parameters()
    options = {"momentum": 0.9, "weight_decay": 0.1, "nesterov": nesterov}
    groups = [{"params": ours[:1]}, {"params": ours[1:], "adapt": False}]
    train(ours, LARS(groups, lr=0.01, **options), gradients())
    train(theirs, optim.SGD(theirs, lr=0.01, **options), gradients())
    assert_near(ours[1:], arrays(theirs[1:]))
    assert not torch.allclose(ours[0], theirs[0])


# -- LAMB ---------------------------------------------------------------------------------------


def lamb_reference(weights, steps, lr, betas, eps, decay, clamp, correct):
    results = []
    for index, w in enumerate(weights):
        m, v = np.zeros_like(w), np.zeros_like(w)
        for t, values in enumerate(steps, start=1):
            g = values[index].numpy()
            m = betas[0] * m + (1 - betas[0]) * g
            v = betas[1] * v + (1 - betas[1]) * g * g
            first, second = (m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)) if correct else (m, v)
            u = first / (np.sqrt(second) + eps) + decay * w
            norm, update_norm = np.sqrt(np.sum(w * w)), np.sqrt(np.sum(u * u))
            ratio = min(norm, clamp) / update_norm if norm * update_norm > 0 else 1.0
            w = w - lr * ratio * u
        results.append(w)
    return results


@pytest.mark.parametrize("correct", [True, False], ids=["corrected", "not corrected"])
@pytest.mark.parametrize("clamp", [0.5, 10.0, None])
@pytest.mark.parametrize("scale", [0.0, 1.0], ids=["from zero", "from anywhere"])
def test_lamb(correct, clamp, scale):
    params = parameters(scale=scale)
    options = {"betas": (0.8, 0.95), "eps": 1e-3}
    expected = lamb_reference(
        arrays(params), gradients(), 0.05, *options.values(), 0.1, clamp or math.inf, correct
    )
    optimizer = LAMB(params, 0.05, **options, weight_decay=0.1, clamp=clamp, bias_correction=correct)
    train(params, optimizer, gradients())
    assert_near(params, expected)


def test_lamb_without_adaptation_is_adamw():
    ours, theirs = parameters(), parameters()
    groups = [{"params": ours[:1]}, {"params": ours[1:], "adapt": False}]
    train(ours, LAMB(groups, lr=0.01, weight_decay=0.1), gradients())
    train(theirs, optim.AdamW(theirs, lr=0.01, eps=1e-6, weight_decay=0.1), gradients())
    assert_near(ours[1:], arrays(theirs[1:]))
    assert not torch.allclose(ours[0], theirs[0])


# -- LBFGS --------------------------------------------------------------------------------------


def quadratic(params):
    """Condition number 100; the minimum is not at zero."""
    x = torch.cat([p.flatten() for p in params])
    return 0.5 * (torch.logspace(-1, 1, len(x), dtype=x.dtype) * (x - 1) ** 2).sum()


def rosenbrock(params):
    x = torch.cat([p.flatten() for p in params])
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def evaluate(params, loss):
    def closure():
        for p in params:
            p.grad = None
        value = loss(params)
        value.backward()
        return value

    return closure


def torch_lbfgs(params, **options):
    return optim.LBFGS(params, max_iter=1, **options)


@pytest.mark.parametrize("loss", [quadratic, rosenbrock], ids=["quadratic", "Rosenbrock"])
@pytest.mark.parametrize("lr", [0.5, 0.1])
@pytest.mark.parametrize("history_size", [1, 3, 10])
def test_lbfgs_is_torchs(loss, lr, history_size):
    """Every one of 20 steps; rounding grows with them, the more where the problem is not convex."""
    ours, theirs = parameters(scale=0.1), parameters(scale=0.1)
    a = LBFGS(ours, lr=lr, history_size=history_size)
    b = torch_lbfgs(theirs, lr=lr, history_size=history_size)
    first = float(loss(ours).detach())
    for _ in range(STEPS):
        found = a.step(evaluate(ours, loss))
        expected = b.step(evaluate(theirs, loss))
        assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-8)
        assert_near(ours, arrays(theirs), rtol=1e-8)
    assert float(loss(ours).detach()) < 0.9 * first


def test_lbfgs_is_torchs_in_single_precision():
    ours, theirs = parameters(torch.float32, 0.1), parameters(torch.float32, 0.1)
    a, b = LBFGS(ours, lr=0.5), torch_lbfgs(theirs, lr=0.5, history_size=10)
    for _ in range(STEPS):
        a.step(evaluate(ours, quadratic))
        b.step(evaluate(theirs, quadratic))
    torch.testing.assert_close(flatten(ours), flatten(theirs), rtol=1e-3, atol=1e-4)


def follow_torch(steps, **tolerances):
    """Give both the same gradients, whether or not they are those of any function."""
    ours, theirs = parameters(), parameters()
    a = LBFGS(ours, lr=0.1, history_size=3, **tolerances)
    b = torch_lbfgs(theirs, lr=0.1, history_size=3, **tolerances)
    for values in steps:
        set_gradients(ours, values)
        set_gradients(theirs, values)
        a.step()
        b.step(lambda: torch.zeros(()))
        assert_near(ours, arrays(theirs), rtol=1e-8)
    return a, b


def test_lbfgs_refuses_pairs_without_curvature():
    """Random gradients: half of the pairs have negative curvature, and some slopes are uphill."""
    ours, theirs = follow_torch(gradients())
    state = next(iter(ours.state.values()))
    assert state["step"] == STEPS
    assert 3 < state["pairs"] < STEPS - 3
    assert len(next(iter(theirs.state.values()))["old_dirs"]) == 3


def test_lbfgs_does_nothing_with_a_small_gradient():
    large, small = gradients(1)[0], [1e-9 * g for g in gradients(1)[0]]
    ours, _ = follow_torch([small, large, small, large, small])
    assert next(iter(ours.state.values()))["step"] == 2


def test_lbfgs_does_not_move_without_a_slope():
    ours, _ = follow_torch(gradients(5), tolerance_change=1e6)
    moved = [p for group in ours.param_groups for p in group["params"]]
    assert torch.equal(flatten(moved), flatten(parameters()))
    assert next(iter(ours.state.values()))["step"] == 5


def test_lbfgs_takes_a_missing_gradient_as_zero():
    steps = gradients(8)
    for t, values in enumerate(steps):
        values[t % 3] = None
        values[3] = None
    follow_torch(steps)


def test_lbfgs_of_no_gradients_at_all():
    params = parameters()
    optimizer = LBFGS(params)
    optimizer.step()
    assert torch.equal(flatten(params), flatten(parameters()))
    assert not optimizer.state


def test_lbfgs_does_not_stop_at_nan():
    params = parameters()
    flat = train(params, LBFGS(params), [[math.nan * g for g in gradients(1)[0]]])
    assert flat.isnan().all()


def test_lbfgs_knows_one_group():
    a, b = parameters()[:2]
    with pytest.raises(ValueError, match="params: expected one parameter group, found 2"):
        LBFGS([{"params": [a]}, {"params": [b], "lr": 0.1}])


# -- on stretches -------------------------------------------------------------------------------

REDUCING = {
    "LARS": partial(LARS, lr=1.0, weight_decay=0.1),
    "LARS nesterov": partial(LARS, lr=1.0, nesterov=True),
    "LAMB": partial(LAMB, lr=0.05, weight_decay=0.1, clamp=2.0),
    "LBFGS": partial(LBFGS, lr=0.1, history_size=3),
}
CUTS = {"whole": (0, 30), "three": (0, 5, 19, 30), "many": (0, 1, 2, 13, 17, 18, 25, 30)}


def stretches(params, start, stop):
    """(index of the parameter, first and last element in it) of what lies in a shard."""
    offset = 0
    for index, p in enumerate(params):
        lo, hi = max(start, offset), min(stop, offset + p.numel())
        if lo < hi:
            yield index, lo - offset, hi - offset
        offset += p.numel()


def step_shards(factory, params, cuts, states):
    """One step on shards: build, load, sum, apply, save."""
    shards = []
    for n, (lo, hi) in enumerate(pairwise(cuts)):
        where = list(stretches(params, lo, hi))
        tensors = []
        for index, start, stop in where:
            tensor = params[index].data.view(-1)[start:stop]
            if params[index].grad is not None:
                tensor.grad = params[index].grad.view(-1)[start:stop].clone()
            tensors.append(tensor)
        optimizer = factory(tensors)
        for i, tensor in enumerate(tensors):
            if states.get((n, i)):
                optimizer.state[tensor] = copy.deepcopy(states[n, i])
        shards.append((n, where, tensors, optimizer))
    partials = [optimizer.partials() for *_, optimizer in shards]
    assert all(p.dtype == torch.float64 for p in partials)
    if shards[0][-1].per_parameter:
        totals = torch.zeros(len(params), partials[0].shape[1], dtype=torch.float64)
        for (_, where, _, _), sums in zip(shards, partials, strict=True):
            for (index, _, _), row in zip(where, sums, strict=True):
                totals[index] += row
    else:
        totals = sum(partials)
    for n, where, tensors, optimizer in shards:
        optimizer.apply(totals[[index for index, _, _ in where]] if optimizer.per_parameter else totals)
        for i, tensor in enumerate(tensors):
            states[n, i] = optimizer.state.get(tensor)


@pytest.mark.parametrize("missing", [False, True], ids=["all gradients", "some gradients"])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("factory", REDUCING.values(), ids=REDUCING)
def test_stretches_are_updated_as_the_whole(factory, cuts, missing):
    whole, cut = parameters(), parameters()
    reference = factory(whole)
    states = {}
    for t, values in enumerate(gradients(12)):
        given = [None if missing and (t + i) % 3 == 0 else g for i, g in enumerate(values)]
        train(whole, reference, [given])
        set_gradients(cut, given)
        with torch.no_grad():
            step_shards(factory, cut, cuts, states)
        assert_near(cut, arrays(whole), rtol=1e-9)


@pytest.mark.parametrize("factory", REDUCING.values(), ids=REDUCING)
def test_partials_leave_weights_alone(factory):
    params = parameters()
    set_gradients(params, gradients(1)[0])
    before = flatten(params)
    with torch.no_grad():
        factory(params).partials()
    assert torch.equal(flatten(params), before)


# -- as torch optimizers ------------------------------------------------------------------------

ALL = REDUCING | {"Ftrl": partial(Ftrl, lr=0.1, l1=0.01), "AdagradDecay": partial(AdagradDecay, decay_step=3)}


@pytest.mark.parametrize("factory", ALL.values(), ids=ALL)
def test_a_state_dict_continues_a_run(factory):
    params = parameters()
    optimizer = factory(params)
    train(params, optimizer, gradients(12)[:6])
    resumed = [torch.nn.Parameter(p.detach().clone()) for p in params]
    other = factory(resumed)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    expected = train(params, optimizer, gradients(12)[6:])
    assert torch.equal(train(resumed, other, gradients(12)[6:]), expected)


@pytest.mark.parametrize("factory", ALL.values(), ids=ALL)
def test_a_closure_is_evaluated_with_gradients(factory):
    params = parameters()
    optimizer = factory(params)
    losses = [float(optimizer.step(evaluate(params, quadratic)).detach()) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", sorted(set(ALL) - {"LBFGS"}))
def test_parameters_without_gradient_are_skipped(name):
    params, alone = parameters(), parameters()[:1]
    optimizer = ALL[name](params)
    train(params, optimizer, [[values[0], None, None, None] for values in gradients()])
    train(alone, ALL[name](alone), [values[:1] for values in gradients()])
    assert torch.equal(params[0], alone[0])
    assert torch.equal(flatten(params[1:]), flatten(parameters()[1:]))
    assert set(optimizer.state) <= {params[0]}


def test_the_base_class_leaves_the_sums_to_subclasses():
    optimizer = ReducingOptimizer(parameters(), {})
    with pytest.raises(NotImplementedError):
        optimizer.partials()
    with pytest.raises(NotImplementedError):
        optimizer.apply(torch.zeros(0))


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (Ftrl, {"lr": -1}, "lr=-1: expected at least 0"),
        (Ftrl, {"lr_power": 0.5}, "lr_power=0.5: expected at most 0"),
        (Ftrl, {"initial_accumulator_value": 0}, "initial_accumulator_value=0: expected more than 0"),
        (Ftrl, {"l1": -0.1}, "l1=-0.1: expected at least 0"),
        (Ftrl, {"l2": math.nan}, "l2=nan: expected at least 0"),
        (Ftrl, {"l2_shrinkage": -2}, "l2_shrinkage=-2: expected at least 0"),
        (AdagradDecay, {"lr": -1}, "lr=-1: expected at least 0"),
        (AdagradDecay, {"initial_accumulator_value": 0}, "initial_accumulator_value=0: expected more than 0"),
        (AdagradDecay, {"decay_step": 0}, "decay_step=0: expected at least 1"),
        (AdagradDecay, {"decay_rate": 1.5}, "decay_rate=1.5: expected more than 0 and at most 1"),
        (LARS, {"lr": -1}, "lr=-1: expected at least 0"),
        (LARS, {"lr": 1, "momentum": -0.9}, "momentum=-0.9: expected at least 0"),
        (LARS, {"lr": 1, "trust_coefficient": 0}, "trust_coefficient=0: expected more than 0"),
        (LARS, {"lr": 1, "nesterov": True, "momentum": 0}, "nesterov=True: expected momentum above 0"),
        (LAMB, {"eps": -1}, "eps=-1: expected at least 0"),
        (LAMB, {"betas": (0.9, 1.0)}, r"betas\[1\]=1.0: expected at least 0 and less than 1"),
        (LAMB, {"clamp": 0}, "clamp=0: expected more than 0"),
        (LBFGS, {"lr": -1}, "lr=-1: expected at least 0"),
        (LBFGS, {"tolerance_grad": -1}, "tolerance_grad=-1: expected at least 0"),
        (LBFGS, {"history_size": 0}, "history_size=0: expected at least 1"),
    ],
)
def test_bad_arguments(cls, options, message):
    with pytest.raises(ValueError, match=message):
        cls(parameters(), **options)
