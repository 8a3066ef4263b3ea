from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparkdl.nn.int8 import quantize
from sparkdl.nn.prepack import prepack


@pytest.mark.parametrize("shape", [(1,), (5,), (400,), (2, 3), (2, 0), (0,), ()])
@pytest.mark.parametrize("bias", [True, False])
def test_close_to_what_the_layer_gave_before(shape: tuple[int, ...], bias: bool) -> None:
    linear = nn.Linear(37, 11, bias=bias)
    x = torch.randn(*shape, 37)
    with torch.inference_mode():
        expected = linear(x)
        torch.testing.assert_close(prepack(linear)(x), expected, rtol=1e-6, atol=1e-6)


def test_a_row_does_not_depend_on_the_others() -> None:
    linear = prepack(nn.Linear(300, 20))
    x = torch.randn(100, 300)
    with torch.inference_mode():
        assert torch.equal(linear(x)[:7], linear(x[:7]))


def test_rows_that_do_not_lie_one_after_the_other() -> None:
    linear, x = nn.Linear(6, 4), torch.randn(6, 9)
    with torch.inference_mode():
        expected = linear(x.t())
        torch.testing.assert_close(prepack(linear)(x.t()), expected, rtol=1e-6, atol=1e-6)


def test_the_same_bits_where_it_does_not_apply() -> None:
    linear, x = nn.Linear(64, 32), torch.randn(9, 64, requires_grad=True)
    expected = linear(x)
    assert torch.equal(prepack(linear)(x), expected)
    prepack(linear)(x).sum().backward()
    assert x.grad is not None
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert linear(x).dtype is torch.bfloat16


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_rows_are_taken_as_before() -> None:
    linear, parts = nn.Linear(6, 4), [torch.randn(3, 6), torch.randn(1, 6)]
    with torch.inference_mode():
        expected = [linear(part) for part in parts]
        found = prepack(linear)(torch.nested.as_nested_tensor(parts)).unbind()
    torch.testing.assert_close(list(found), expected)


def test_wrong_inputs_fail_as_before() -> None:
    linear = prepack(nn.Linear(4, 3))
    with torch.inference_mode():
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            linear(torch.ones(2, 5))
        with pytest.raises(RuntimeError, match="dtype"):
            linear(torch.ones(2, 4, dtype=torch.float64))


def test_only_plain_float32_layers_change_and_weights_can_be_read() -> None:
    class Reading(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return input @ self.weight.t()

    module = nn.Sequential(nn.Linear(4, 4), Reading(4, 4), nn.Linear(4, 4).double())
    weights = [parameter.clone() for parameter in module.parameters()]
    prepack(module)
    assert ["forward" in vars(part) for part in module] == [True, False, False]
    assert all(torch.equal(a, b) for a, b in zip(weights, module.parameters(), strict=True))


@pytest.mark.parametrize("packed", [prepack, quantize])
def test_a_weight_that_a_hook_computes_is_that_of_the_moment(packed: Any) -> None:
    """As ``spectral_norm`` and ``prune`` do: the attribute is that of the last forward pass."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.utils.spectral_norm(nn.Linear(32, 16)), nn.ReLU(), nn.Linear(16, 4)).eval()
    x = torch.randn(5, 32)
    with torch.no_grad():
        module[0].weight_orig.add_(torch.randn(16, 32))
        found = packed(copy.deepcopy(module))(x)
        torch.testing.assert_close(found, module(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("packed", [prepack, quantize])
def test_a_layer_with_a_forward_method_of_its_own_keeps_it(packed: Any) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    module[0].forward = torch.zeros_like
    module[1].register_forward_hook(lambda layer, inputs, output: output + 3)
    with torch.no_grad():
        found = packed(copy.deepcopy(module))(torch.ones(2, 4))
    torch.testing.assert_close(found, module[1].bias.detach().expand(2, 2) + 3)


def test_hooks_still_run() -> None:
    linear, seen = prepack(nn.Linear(2, 2)), []
    linear.register_forward_hook(lambda *_: seen.append(1))
    with torch.inference_mode():
        linear(torch.ones(3, 2))
    assert seen == [1]


def test_transformers_read_the_weights_of_their_layers() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(3, 5, 16)
    with torch.inference_mode():
        expected = layer(x)
        torch.testing.assert_close(prepack(layer)(x), expected, rtol=1e-5, atol=1e-6)


def test_without_onednn_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert "forward" not in vars(prepack(nn.Linear(2, 2)))
