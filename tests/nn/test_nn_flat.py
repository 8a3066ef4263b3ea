import contextlib
import copy

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.exceptions import ModelError
from sparkdl.nn.flat import FlatModule, write_back
from sparkdl.nn.parameters import layout_of, trainable


class Net(nn.Module):
    """Tied, frozen and unused parameters, and buffers of every kind."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2, 2))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.decoder = nn.Linear(3, 5, bias=False)
        self.decoder.weight = self.embedding.weight
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("big", torch.tensor([2**62 + 1, -3]))
        self.register_buffer("low", torch.tensor([0.5], dtype=torch.float16))
        self.register_buffer("nothing", None)

    def forward(self, x):
        return self.decoder(self.frozen(self.norm(self.embedding(x)))) * self.scale


def holding(**tensors):
    """A module with the given parameters and buffers."""
    module = nn.Module()
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(name, tensor)
        else:
            module.register_buffer(name, tensor)
    return module


def flat_of(module):
    flat = FlatModule(module)
    return flat.params.numpy().copy(), flat.buffers(), flat.counters()


# -- layout -------------------------------------------------------------------------------------


def test_the_layout_lists_what_is_trained_and_every_buffer():
    layout = layout_of(Net())
    assert [(s.name, s.shape, s.offset) for s in layout.params] == [
        ("unused", (2, 2), 0),
        ("scale", (), 4),
        ("embedding.weight", (5, 3), 5),
        ("norm.weight", (3,), 20),
        ("norm.bias", (3,), 23),
    ]
    assert [s.name for s in layout.buffers] == ["low", "norm.running_mean", "norm.running_var"]
    assert [s.name for s in layout.counters] == ["mask", "big", "norm.num_batches_tracked"]
    assert (layout.numel, layout.dtype) == (26, "float32")


def test_groups_come_from_the_parameter():
    module = nn.Linear(2, 1)
    layout = layout_of(module, lambda p: int(p is module.bias))
    assert [(s.name, s.group) for s in layout.params] == [("weight", 0), ("bias", 1)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parameters_keep_their_dtype(dtype):
    module = nn.Linear(2, 2, dtype=getattr(torch, dtype))
    assert layout_of(module).dtype == dtype
    assert flat_of(module)[0].dtype == dtype


def sparse():
    return nn.Parameter(torch.eye(2).to_sparse())


BASE = torch.zeros(6)

REJECTED = {
    "half": (nn.Linear(1, 1).half(), r"parameter 'weight' is torch.float16.*module.float\(\)"),
    "complex": (nn.Linear(1, 1, dtype=torch.complex64), "parameter 'weight' is torch.complex64"),
    "mixed": (
        nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double()),
        "all parameters must have one dtype: .*'0.weight' is torch.float32",
    ),
    "sparse": (holding(p=sparse()), "parameter 'p' has layout torch.sparse_coo"),
    "shared memory": (
        holding(a=nn.Parameter(BASE), b=nn.Parameter(BASE.view(2, 3))),
        "parameters 'a' and 'b' are different Parameter objects that share memory",
    ),
    "lazy": (nn.Sequential(nn.LazyLinear(2)), "parameter '0.weight' of a lazy module is not initialized"),
}


@pytest.mark.parametrize(("module", "message"), REJECTED.values(), ids=REJECTED)
def test_modules_that_cannot_be_flattened(module, message):
    with pytest.raises(ModelError, match=message):
        layout_of(module)


@pytest.mark.parametrize(
    "module",
    [
        holding(a=nn.Parameter(BASE[:4]), b=nn.Parameter(BASE[2:])),
        holding(a=nn.Parameter(torch.zeros(1).expand(3))),
    ],
    ids=["partly shared", "expanded"],
)
def test_partly_overlapping_parameters_are_rejected(module):
    with pytest.raises(ModelError, match="share memory"):
        layout_of(module)


def test_lazy_buffers_are_rejected():
    with pytest.raises(ModelError, match="not initialized"):
        layout_of(nn.Sequential(nn.Linear(1, 1), nn.LazyBatchNorm1d(affine=False)))


def test_disjoint_views_of_one_tensor_are_fine():
    module = holding(a=nn.Parameter(BASE[:2]), b=nn.Parameter(BASE[2:]), none=nn.Parameter(torch.empty(0)))
    assert layout_of(module).numel == 6


@pytest.mark.parametrize(("dtype", "expected"), [("float64", "float64"), ("bfloat16", "float32")])
def test_a_module_of_which_nothing_is_trained_has_an_empty_vector(dtype, expected):
    for module in (nn.ReLU(), nn.Linear(1, 1, dtype=getattr(torch, dtype)).requires_grad_(False)):
        layout = layout_of(module)
        assert (layout.params, layout.numel) == ((), 0)
        FlatModule(module, layout).load(np.empty(0, layout.dtype), np.empty(0), np.empty(0))
    assert layout.dtype == expected


def test_a_frozen_parameter_may_have_any_dtype():
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).half().requires_grad_(False))
    assert [name for name, _ in trainable(module)] == ["0.weight", "0.bias"]
    assert layout_of(module).numel == 2


# -- vectors ------------------------------------------------------------------------------------


def test_parameters_and_gradients_are_views_of_the_vectors():
    module = Net()
    before = copy.deepcopy(module.state_dict())
    flat = FlatModule(module)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    for (_, p), spec in zip(trainable(module), flat.layout.params, strict=True):
        flat.params[spec.offset : spec.end] = 7.0
        flat.grad[spec.offset : spec.end] = 3.0
        assert (p == 7).all()
        assert (p.grad == 3).all()
    assert module.decoder.weight is module.embedding.weight


def test_the_gradient_is_that_of_the_plain_module():
    x = torch.tensor([0, 3, 3, 1])
    module = Net()
    plain = copy.deepcopy(module)
    flat = FlatModule(module)
    for model in (plain, flat.module):
        model(x).square().sum().backward()
    for (name, p), spec in zip(trainable(plain), flat.layout.params, strict=True):
        expected = torch.zeros(p.shape) if p.grad is None else p.grad
        assert torch.equal(flat.grad[spec.offset : spec.end].view(spec.shape), expected), name
    flat.zero_grad()
    assert not flat.grad.any()


def test_used_marks_the_parameters_that_backward_reached():
    flat = FlatModule(Net())
    assert not flat.used.any()
    flat.module(torch.tensor([1, 2])).sum().backward()
    assert flat.used.tolist() == [False, True, True, True, True]
    flat.zero_grad()
    assert not flat.used.any()
    flat.module.unused.sum().backward()
    assert flat.used.tolist() == [True, False, False, False, False]


def test_a_sparse_gradient_lands_in_the_vector():
    flat = FlatModule(nn.Embedding(4, 2, sparse=True))
    flat.module(torch.tensor([2, 2])).sum().backward()
    assert flat.grad.tolist() == [0, 0, 0, 0, 2, 2, 0, 0]
    assert flat.used.tolist() == [True]


def test_parameters_that_are_not_contiguous_keep_their_values():
    weight = torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    flat = FlatModule(holding(w=nn.Parameter(weight)))
    assert flat.params.tolist() == list(range(24))


# -- load and write back ------------------------------------------------------------------------


def test_weights_and_buffers_round_trip_through_read_only_vectors():
    source = Net()
    source.train()(torch.tensor([0, 1, 2]))
    vectors = flat_of(source)
    for vector in vectors:
        vector.flags.writeable = False
    loaded = FlatModule(Net())
    loaded.load(*vectors)
    written = Net()
    write_back(written, layout_of(written), *vectors)
    for target in (loaded.module, written):
        for name, value in source.state_dict().items():
            if not name.startswith("frozen"):
                found = target.state_dict()[name]
                assert found.dtype == value.dtype
                assert torch.equal(found, value), name
        for before, after in zip(vectors, flat_of(target), strict=True):
            np.testing.assert_array_equal(before, after)


def test_buffers_are_copies():
    flat = FlatModule(Net())
    buffers, counters = flat.buffers(), flat.counters()
    flat.module(torch.tensor([0, 1]))
    assert flat.counters()[-1] == counters[-1] + 1
    assert (flat.buffers() != buffers).any()
    assert counters.dtype == np.int64


def test_a_module_without_buffers_has_empty_vectors():
    flat = FlatModule(nn.Linear(1, 1, dtype=torch.float64))
    assert (flat.buffers().shape, flat.buffers().dtype) == ((0,), np.float64)
    assert (flat.counters().shape, flat.counters().dtype) == ((0,), np.int64)
    flat.load(np.ones(2), flat.buffers(), flat.counters())


def test_write_back_leaves_separate_parameters():
    module = nn.Linear(2, 1)
    write_back(module, layout_of(module), np.array([1, 2, 3], np.float32), np.empty(0), np.empty(0))
    assert (module.weight.tolist(), module.bias.tolist()) == ([[1, 2]], [3])
    assert module.weight.untyped_storage().data_ptr() != module.bias.untyped_storage().data_ptr()


BUFFERS = {
    "bfloat16": torch.tensor([1.5, -2], dtype=torch.bfloat16),
    "-inf mask": torch.full((2, 2), float("-inf")).triu(1),
    "uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "empty": torch.empty(0, 3),
    "transposed": torch.arange(6.0).view(2, 3).T,
    "float64": pytest.param(
        torch.tensor([1 / 3], dtype=torch.float64),
    ),
    "complex": pytest.param(
        torch.tensor([1 + 2j]),
    ),
    "expanded": pytest.param(
        torch.ones(1).expand(3),
    ),
}


@pytest.mark.parametrize("buffer", BUFFERS.values(), ids=BUFFERS)
def test_every_kind_of_buffer_survives_a_round_trip(buffer):
    vectors = flat_of(holding(p=nn.Parameter(torch.ones(1)), buffer=copy.deepcopy(buffer)))
    blank = copy.deepcopy(buffer)
    blank.untyped_storage().fill_(0)
    target = FlatModule(holding(p=nn.Parameter(torch.ones(1)), buffer=blank))
    target.load(*vectors)
    assert target.module.buffer.dtype == buffer.dtype
    assert torch.equal(target.module.buffer, buffer)


# -- what backward reached ----------------------------------------------------------------------


@pytest.mark.parametrize("passes", [1, 3])
def test_touched_rows_of_sparse_embeddings(passes):
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Embedding(4, 2)
            self.one = nn.Embedding(4, 2, sparse=True)
            self.bag = nn.EmbeddingBag(5, 2, sparse=True, mode="sum")
            self.tied = nn.Embedding(3, 2, sparse=True)

        def forward(self, x):
            return (self.dense(x) + self.one(x) + self.bag(x[:, None]) + self.tied(x)) @ self.tied.weight.T

    flat = FlatModule(Sparse())
    assert flat.touched == {}
    for row in range(passes):
        flat.module(torch.tensor([row, 0])).sum().backward()
    rows = list(range(passes))
    touched = flat.touched
    assert touched.keys() == {1, 2}
    assert np.flatnonzero(touched[1]).tolist() == np.flatnonzero(touched[2]).tolist() == rows
    assert (touched[1].shape, touched[2].shape) == ((4,), (5,))
    for index, found in touched.items():
        spec = flat.layout.params[index]
        gradient = flat.grad[spec.offset : spec.end].view(spec.shape)
        assert (gradient.any(1).numpy() == found).all()
    assert flat.used.all()
    flat.zero_grad()
    assert flat.touched == {}


def test_a_sparse_gradient_is_the_dense_one_to_the_bit():
    gradients = []
    for is_sparse in (False, True):
        torch.manual_seed(0)
        flat = FlatModule(nn.Sequential(nn.Embedding(5, 3, sparse=is_sparse), nn.Linear(3, 1)))
        for rows in ([1, 1, 4], [0, 1]):
            flat.module(torch.tensor(rows)).square().sum().backward()
        gradients.append(flat.grad)
    assert torch.equal(*gradients)


def test_frozen_parameters_get_no_gradient():
    flat = FlatModule(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False)))
    x = torch.ones(1, 2)
    for frozen in (np.array([True, False, False]), [0]):
        flat.set_frozen(frozen)
        flat.zero_grad()
        flat.module(x).sum().backward()
        assert flat.used.tolist() == [False, True, True]
        assert not flat.grad[:4].any()
        assert flat.frozen() == ["0.weight"]
    flat.set_frozen(np.array([False, False, True]))
    assert [p.requires_grad for p in flat.module.parameters()] == [True, True, False]
    flat.set_frozen(())
    assert all(p.requires_grad for p in flat.module.parameters())
    assert flat.frozen() == []


def test_a_parameter_that_forward_unfreezes_is_refused():
    """Torch's optimizer would train it, if it was given it."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    module[0].requires_grad_(False)
    flat = FlatModule(module)
    flat.module(torch.ones(1, 2)).sum().backward()
    flat.check_gradients()
    module.register_forward_pre_hook(lambda module, _: module[0].requires_grad_(True) and None)
    flat.module(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ModelError, match=r"parameter '0.weight' was frozen .*hooks=\[Unfreeze\('0.weight'"):
        flat.check_gradients()


def test_a_replaced_gradient_is_noticed_and_put_back():
    flat = FlatModule(nn.Linear(2, 1))
    flat.module.zero_grad()
    with pytest.raises(ModelError, match="the .grad of parameter 'weight' was replaced"):
        flat.check_gradients()
    flat.module.bias.grad = flat._grads[1]
    flat.check_gradients()
    flat.set_frozen([0])
    flat.check_gradients()


# -- evaluation ---------------------------------------------------------------------------------


class FrozenNorm(nn.Module):
    """Keeps its BatchNorm in evaluation mode, as when fine-tuning."""

    def __init__(self):
        super().__init__()
        self.norm, self.other = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
        self.switched = []

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        self.switched.append(mode)
        return self


def test_evaluating_restores_the_mode_of_each_submodule():
    flat = FlatModule(FrozenNorm().train())
    flat.module.other.eval()
    flat.module.switched.clear()
    with flat.evaluating():
        assert not any(m.training for m in flat.module.modules())
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    assert [m.training for m in flat.module.modules()] == [True, False, False]
    assert flat.module.switched == [False, True]


def test_a_failing_evaluation_restores_the_modes_as_well():
    flat = FlatModule(FrozenNorm().train())

    def fail():
        with flat.evaluating():
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.is_grad_enabled()
    assert [m.training for m in flat.module.modules()] == [True, False, True]


# -- buffers ------------------------------------------------------------------------------------


class Assigns(nn.Module):
    """Assigns its buffers anew instead of writing into them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("cache", torch.zeros(1))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.mean = self.mean * 0.5 + x.mean(0)
        self.cache = torch.arange(float(len(x)))
        self.calls = self.calls + 1
        return x * self.weight


def test_buffers_that_the_module_assigns_anew_are_followed():
    flat = FlatModule(Assigns())
    flat.module(torch.ones(3, 2))
    assert flat.buffers().tolist() == [1, 1, 0]
    assert flat.counters().tolist() == [1]
    flat.load(np.ones(1), np.array([4.0, 5.0, 0.0]), np.array([7]))
    assert (flat.module.mean.tolist(), flat.module.calls.item()) == ([4, 5], 7)
    assert len(flat.module.cache) == 3


# -- devices ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
        ),
    ],
)
def test_vectors_on_a_device(device):
    source = Net()
    vectors = [vector.copy() for vector in flat_of(source)]
    flat = FlatModule(Net(), device=device)
    assert {t.device.type for t in (flat.params, flat.grad, *flat.module.state_dict().values())} == {device}
    flat.load(*vectors)
    np.testing.assert_array_equal(flat.params.cpu().numpy(), vectors[0])
    np.testing.assert_array_equal(flat.buffers(), vectors[1])
    np.testing.assert_array_equal(flat.counters(), vectors[2])
    flat.module(torch.tensor([0, 1], device=device)).sum().backward()
    np.testing.assert_array_equal(flat.on_host(flat.grad), flat.grad.cpu().numpy())
    assert flat.used.tolist() == [False, True, True, True, True]


def test_the_gradient_of_the_cpu_is_not_copied():
    flat = FlatModule(Net())
    flat.grad[0] = 5.0
    assert np.shares_memory(flat.on_host(flat.grad), flat.grad.numpy())
    assert flat.on_host(flat.grad)[0] == 5.0


def test_modules_without_values_are_refused():
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with pytest.raises(
        ModelError, match=r"parameter '0\.weight' of Sequential is on the meta device.*to_empty"
    ):
        layout_of(module)
    frozen = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2, device="meta").requires_grad_(False))
    with pytest.raises(ModelError, match=r"parameter '1\.weight'"):
        layout_of(frozen)
    buffers = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, affine=False, device="meta"))
    with pytest.raises(ModelError, match=r"buffer '1\.running_mean' of Sequential is on the meta device"):
        layout_of(buffers)


def test_what_is_held_in_the_module_is_put_back_after_others_were_lent_its_memory():
    module = nn.Linear(2, 1)
    flat = FlatModule(module, layout_of(module))
    flat.load(np.ones(3, np.float32), flat.buffers(), flat.counters())
    with flat.lending():  # nobody holds anything here
        flat.load(np.zeros(3, np.float32), flat.buffers(), flat.counters())
    assert not flat.params.any()
    flat.params.fill_(5)
    flat.holds = "version 3"
    with contextlib.suppress(ValueError), flat.lending():
        flat.load(np.ones(3, np.float32), flat.buffers(), flat.counters())
        assert flat.holds is None
        raise ValueError("a metric fails")
    assert flat.params.tolist() == [5, 5, 5]
    assert flat.holds == "version 3"
