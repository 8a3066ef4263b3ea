import copy
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sparkdl import seeding
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn import numerics
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import Batch, evaluate, forward_backward
from sparkdl.nn.numerics import Numerics, Replica, device_of_task
from sparkdl.nn.objective import LossObjective, StepObjective
from sparkdl.nn.parameters import layout_of
from sparkdl.nn.recompute import recompute

CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
)
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])
CROSS_ENTROPY = LossObjective(nn.CrossEntropyLoss())


class Net(nn.Module):
    """Dropout, BatchNorm, and a layer whose buffer is both read and written."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 8)
        spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.block = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.4), spectral, nn.ReLU())
        self.plain = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.plain(self.block(self.first(x))))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.layers(x)


def batch(rows=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Batch(
        torch.randn(rows, 6, generator=generator),
        torch.randint(0, 3, (rows,), generator=generator),
        None,
        rows,
    )


def replica_of(module, device="cpu", **options):
    return Replica(module, layout_of(module), Numerics(**options), device)


def passes(module, objective=CROSS_ENTROPY, micro_batch_size=None, device="cpu", rows=(9, 9), **options):
    """Run a few passes and return all that they leave."""
    replica = replica_of(module, device, **options)
    torch.manual_seed(1)
    results = [forward_backward(replica, batch(n), objective, micro_batch_size) for n in rows]
    return replica, (results, replica.on_host(replica.grad).copy(), replica.buffers(), replica.counters())


def assert_same(found, expected):
    assert found[0] == expected[0]
    for a, b in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(a, b)


# -- options ------------------------------------------------------------------------------------


def test_the_default_changes_nothing():
    replica, found = passes(Net())
    plain = FlatModule(Net())
    torch.manual_seed(1)
    for result in found[0]:
        assert forward_backward(plain, batch(), CROSS_ENTROPY, None) == result
    np.testing.assert_array_equal(found[1], plain.grad.numpy())
    assert not replica.compiled


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp16"}, "precision='fp16': float16 needs a loss scale.*use 'bf16'"),
        ({"precision": "half"}, "precision='half': expected 'fp32' or 'bf16'"),
        ({"compile": 1}, "compile=1: expected True, False or a dict"),
        ({"compile": {"backends": "x"}}, r"no argument \['backends'\]; it accepts .*'backend'"),
        ({"compile": {"model": None}}, r"no argument \['model'\]"),
        ({"channels_last": "yes"}, "channels_last='yes': expected True or False"),
        ({"checkpoint_activations": 3}, "checkpoint_activations=3: expected names"),
        ({"checkpoint_activations": [3]}, r"checkpoint_activations=\[3\]"),
        ({"checkpoint_activations": [""]}, r"checkpoint_activations=\[''\]"),
        ({"checkpoint_activations": "x", "compile": {"backend": "eager"}}, "use 'aot_eager'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Numerics(**options)


def test_patterns_may_be_one_string():
    assert Numerics(checkpoint_activations="layers.*").checkpoint_activations == ("layers.*",)
    assert Numerics(checkpoint_activations=["a", "b"]) == Numerics(checkpoint_activations=("a", "b"))


# -- bf16 ---------------------------------------------------------------------------------------


@DEVICES
def test_bf16_computes_forward_and_loss_in_autocast(device):
    seen = []

    def loss(output, label):
        seen.append((output.dtype, torch.is_autocast_enabled(device)))
        return functional.cross_entropy(output, label)

    replica, found = passes(Mlp().eval(), LossObjective(loss), device=device, precision="bf16")
    _, exact = passes(Mlp().eval())
    assert seen == [(torch.bfloat16, True)] * 2
    assert replica.grad.dtype == replica.params.dtype == torch.float32
    assert not torch.is_autocast_enabled(device)
    assert found[0][0].loss == pytest.approx(exact[0][0].loss, rel=2e-2)
    np.testing.assert_allclose(found[1], exact[1], atol=0.02)
    assert (found[1] != exact[1]).any()


def test_bf16_is_torchs_own_to_the_bit():
    found = passes(Mlp().eval(), rows=(9,), precision="bf16")[1]
    plain = Mlp().eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = functional.cross_entropy(plain(batch().inputs), batch().label)
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in plain.parameters()])
    np.testing.assert_array_equal(found[1], expected.numpy())
    assert found[0][0].loss == loss.item()


def test_bf16_sees_the_weights_of_each_iteration():
    replica = replica_of(Mlp().eval(), precision="bf16")
    first = forward_backward(replica, batch(), CROSS_ENTROPY, None)
    replica.load(np.zeros_like(replica.params.numpy()), replica.buffers(), replica.counters())
    second = forward_backward(replica, batch(), CROSS_ENTROPY, None)
    assert first.loss != second.loss == pytest.approx(np.log(3), rel=1e-3)


def test_outputs_for_metrics_are_float32():
    replica = replica_of(Mlp(), precision="bf16")
    with replica.evaluating():
        output = evaluate(replica, batch(), CROSS_ENTROPY).output
    assert output.dtype == torch.float32


def test_a_float64_module_cannot_be_autocast():
    with pytest.raises(ConfigError, match="the parameters are float64, which autocast leaves"):
        replica_of(nn.Linear(1, 1).double(), precision="bf16")


# -- compile ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("micro_batch_size", [None, 5])
def test_a_compiled_module_gives_the_same_bits(backend, micro_batch_size):
    torch._dynamo.reset()
    replica, found = passes(Mlp(), micro_batch_size=micro_batch_size, compile={"backend": backend})
    _, expected = passes(Mlp(), micro_batch_size=micro_batch_size)
    assert replica.compiled
    assert_same(found, expected)
    offset = replica.layout.params[0].offset
    replica.params[offset] = 7.0
    assert replica.module.layers[0].weight[0, 0] == 7.0


class Counting:
    """A backend that counts the graphs it is given."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, example_inputs):
        self.graphs += 1
        return graph.forward


@pytest.mark.parametrize("step", [False, True], ids=["loss", "step"])
def test_varying_numbers_of_rows_are_compiled_once(step):
    torch._dynamo.reset()
    backend = Counting()

    def own(module, batch):
        inputs, label = batch
        return functional.cross_entropy(module(inputs), label)

    objective = StepObjective(own) if step else CROSS_ENTROPY
    rows = (9, 8, 10, 31, 2)
    replica, found = passes(Mlp(), objective, rows=rows, compile={"backend": backend})
    assert backend.graphs == 1
    assert replica.compiled
    assert_same(found, passes(Mlp(), rows=rows)[1])


def test_training_and_evaluation_are_compiled_once_each():
    torch._dynamo.reset()
    backend = Counting()
    replica = replica_of(Mlp(), compile={"backend": backend})
    for _ in range(2):
        forward_backward(replica, batch(), CROSS_ENTROPY, None)
        with replica.evaluating():
            evaluate(replica, batch(), CROSS_ENTROPY)
    assert backend.graphs == 2


def broken(graph, example_inputs):
    raise OSError("no compiler here")


def late(graph, example_inputs):
    """Fail when the graph runs."""

    def run(*args):
        torch.rand(3)
        raise OSError("no compiler here")

    return run


@pytest.mark.parametrize("backend", [broken, late], ids=["compiling", "running"])
def test_a_broken_compiler_costs_a_warning_and_changes_nothing(backend):
    torch._dynamo.reset()
    module = Mlp()
    replica = replica_of(module, compile={"backend": backend})
    torch.manual_seed(1)
    with pytest.warns(
        RuntimeWarning, match="torch.compile failed, the module runs uncompiled: .*no compiler"
    ) as w:
        first = forward_backward(replica, batch(), CROSS_ENTROPY, 5)
    assert len(w) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = forward_backward(replica, batch(), CROSS_ENTROPY, 5)
    assert not replica.compiled
    assert "forward" not in vars(module)
    _, expected = passes(Mlp(), micro_batch_size=5)
    assert_same(([first, second], replica.grad.numpy(), replica.buffers(), replica.counters()), expected)


def test_an_unknown_backend_costs_a_warning():
    torch._dynamo.reset()
    with pytest.warns(RuntimeWarning, match="torch.compile failed"):
        _, found = passes(Mlp(), compile={"backend": "nonsense"})
    assert_same(found, passes(Mlp())[1])


def test_a_mistake_in_a_compiled_module_is_explained_as_usual():
    torch._dynamo.reset()
    replica = replica_of(nn.Sequential(nn.Linear(5, 3)), compile={"backend": "eager"})
    with pytest.raises(ModelError, match=r"layer '0', Linear.*got input float32\[9, 6\]"):
        forward_backward(replica, batch(), CROSS_ENTROPY, None)


def test_a_mistake_in_the_loss_does_not_stop_compilation():
    torch._dynamo.reset()
    replica = replica_of(Mlp(), compile={"backend": "eager"})
    with pytest.raises(ModelError, match="the loss returned a float"):
        forward_backward(replica, batch(), LossObjective(lambda o, y: 1.0), None)
    assert replica.compiled


def test_all_generators_are_put_back_before_the_second_attempt():
    torch._dynamo.reset()
    drawn = []

    def step(module, batch):
        drawn.append((torch.rand(1).item(), np.random.rand(), random.random()))  # noqa: NPY002
        return module(batch.inputs).mean()

    replica = replica_of(Mlp(), compile={"backend": broken})
    with pytest.warns(RuntimeWarning, match="torch.compile failed"):
        forward_backward(replica, batch(), StepObjective(step), None)
    assert drawn[0] == drawn[1]


# -- channels last ------------------------------------------------------------------------------


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)
        self.seen = []

    def forward(self, image, scale):
        hidden = self.second(self.first(image).relu())
        self.seen.append(hidden.is_contiguous(memory_format=torch.channels_last))
        return hidden.mean((2, 3)) * scale


@DEVICES
def test_channels_last_reaches_inputs_and_activations(device):
    image, scale = torch.randn(5, 3, 8, 8), torch.rand(5, 1)
    rows = Batch((image, scale), torch.arange(5) % 4, None, 5)
    gradients = []
    for channels_last in (False, True):
        replica = replica_of(Conv(), device, channels_last=channels_last)
        forward_backward(replica, rows, CROSS_ENTROPY, 3)
        assert replica.module.seen == [channels_last] * 2
        assert replica.module.first.weight.is_contiguous()
        gradients.append(replica.grad.cpu())
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


# -- recomputation ------------------------------------------------------------------------------


@pytest.mark.parametrize("patterns", ["block", ["block", "plain"], "*", "block.[02]", "plain.1"])
@pytest.mark.parametrize("micro_batch_size", [None, 5])
def test_recomputed_activations_give_the_same_bits(patterns, micro_batch_size):
    _, expected = passes(Net(), micro_batch_size=micro_batch_size)
    _, found = passes(Net(), micro_batch_size=micro_batch_size, checkpoint_activations=patterns)
    assert_same(found, expected)


class Masked(nn.Module):
    """Leaves values out by masks that it draws itself."""

    def __init__(self, draw):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.draw = nn.Linear(6, 6), nn.Linear(6, 3), draw

    def forward(self, x):
        mask = torch.tensor([[self.draw() < 0.5 for _ in range(6)] for _ in x])
        return self.last(torch.tanh(self.first(x)) * mask)


@pytest.mark.parametrize("draw", [np.random.rand, random.random, lambda: torch.rand(()).item()])
def test_recomputed_activations_draw_the_same(draw):
    gradients = []
    for patterns in ([], ["0"]):
        seeding.seed_task(0, 0, 0, 0)
        replica = replica_of(nn.Sequential(Masked(draw)), checkpoint_activations=patterns)
        forward_backward(replica, Batch(torch.ones(4, 6), torch.arange(4) % 3, None, 4), CROSS_ENTROPY, 2)
        gradients.append((replica.grad.clone(), draw()))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert gradients[0][1] == gradients[1][1], "later draws are those of one forward pass"


def test_recomputed_activations_in_a_compiled_module_give_the_same_bits():
    torch._dynamo.reset()
    replica, found = passes(
        Net(), compile={"backend": "aot_eager"}, checkpoint_activations=["block", "plain"]
    )
    assert replica.compiled
    assert_same(found, passes(Net())[1])


def test_recomputed_activations_in_autocast_give_the_same_bits():
    options = {"precision": "bf16"}
    assert_same(passes(Net(), checkpoint_activations="plain", **options)[1], passes(Net(), **options)[1])


def test_matching_layers_run_twice_in_training_and_once_in_evaluation():
    module = Net()
    calls = []
    module.plain[0].register_forward_hook(lambda *_: calls.append(1))
    replica = replica_of(module, checkpoint_activations="plain")
    forward_backward(replica, batch(), CROSS_ENTROPY, None)
    assert len(calls) == 2
    with replica.evaluating():
        evaluate(replica, batch(), CROSS_ENTROPY)
    assert len(calls) == 3


def test_of_nested_matches_the_outermost_counts():
    assert recompute(Net(), ["*"]) == ["first", "block", "plain", "last"]
    assert recompute(Net(), ["block.*"]) == ["block.0", "block.1", "block.2", "block.3"]
    assert recompute(Net(), []) == []


def test_a_pattern_without_a_match_is_refused():
    with pytest.raises(ConfigError, match="no submodule of Net matches 'layers.*'; there are first, block, "):
        replica_of(Net(), checkpoint_activations="layers.*")


# -- devices ------------------------------------------------------------------------------------


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.norm = nn.Embedding(4, 6, sparse=True), nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.norm(x) + self.embedding(x[:, 0].long().abs()))


@DEVICES
def test_a_pass_on_a_device_gives_the_gradient_of_the_cpu(device):
    module = Sparse()
    expected = FlatModule(copy.deepcopy(module))
    rows = batch()
    weighted = Batch(rows.inputs, rows.label, torch.rand(9), 9)
    objective = LossObjective(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3]), reduction="none"))
    replica = Replica(module, layout_of(module), Numerics(), device)
    assert replica.device.type == device
    vectors = [
        v.copy() for v in (expected.params.numpy() * 2, expected.buffers() + 1, expected.counters() + 3)
    ]
    for flat in (expected, replica):
        for vector in vectors:
            vector.flags.writeable = False
        flat.load(*vectors)
    a = forward_backward(expected, weighted, objective, 5)
    b = forward_backward(replica, weighted, objective, 5)
    assert a.loss == pytest.approx(b.loss, rel=1e-5)
    np.testing.assert_allclose(
        replica.on_host(replica.grad), expected.on_host(expected.grad), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(replica.buffers(), expected.buffers(), rtol=1e-5)
    np.testing.assert_array_equal(replica.counters(), expected.counters())
    assert replica.touched.keys() == expected.touched.keys()


def test_tasks_without_a_gpu_compute_on_the_cpu():
    assert device_of_task({}) == "cpu"
    assert device_of_task({"gpu": [], "fpga": ["0"]}) == "cpu"


@pytest.fixture
def gpus(monkeypatch):
    def pretend(count, visible=None):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    numerics._warn_once.cache_clear()
    yield pretend
    numerics._warn_once.cache_clear()


@pytest.mark.parametrize(
    ("count", "visible", "address", "device"),
    [
        (1, None, "0", "cuda:0"),
        (4, None, "3", "cuda:3"),
        (1, "3", "3", "cuda:0"),
        (2, "1, 0", "1", "cuda:0"),
        (2, "GPU-a,GPU-b", "GPU-b", "cuda:1"),
        (2, "GPU-a,GPU-b", "1", "cuda:1"),
    ],
)
def test_the_assigned_gpu_is_used(gpus, count, visible, address, device):
    gpus(count, visible)
    assert device_of_task({"gpu": [address, "9"]}) == device


@pytest.mark.parametrize(
    ("count", "address", "message"),
    [
        (0, "0", "finds no usable CUDA device"),
        (1, "5", "torch sees 1 GPUs"),
        (1, "GPU-x", "torch sees 1 GPUs"),
    ],
)
def test_a_gpu_that_torch_cannot_use_costs_one_warning(gpus, count, address, message):
    gpus(count)
    with pytest.warns(RuntimeWarning, match=message) as caught:
        assert [device_of_task({"gpu": [address]}) for _ in range(3)] == ["cpu"] * 3
    assert len(caught) == 1
