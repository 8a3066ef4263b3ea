from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from support.models import Everything
from torch import Tensor, nn

from sparkdl.nn import int8
from sparkdl.nn.int8 import Int8Conv2d, Int8Linear, quantize


@pytest.mark.parametrize("shape", [(1,), (5,), (0,), (2, 3), ()])
@pytest.mark.parametrize("bias", [True, False])
def test_close_to_the_layer_it_was_made_of(shape: tuple[int, ...], bias: bool) -> None:
    linear = nn.Linear(37, 11, bias=bias)
    x = torch.randn(*shape, 37) * 10
    with torch.inference_mode():
        expected, found = linear(x), Int8Linear(linear)(x)
    assert found.shape == expected.shape
    if x.numel():
        assert (found - expected).abs().max() <= 0.02 * expected.abs().max() + 0.02


def test_rows_of_zeros_and_outputs_of_zeros() -> None:
    linear = nn.Linear(3, 2)
    nn.init.zeros_(linear.weight)
    assert torch.equal(Int8Linear(linear)(torch.zeros(2, 3)), linear.bias.detach().expand(2, 2))


def test_whole_numbers_are_exact() -> None:
    linear = nn.Linear(4, 1, bias=False)
    linear.weight.data = torch.tensor([[127.0, -1.0, 0.0, 5.0]])
    x = torch.tensor([[127.0, 3.0, 9.0, -2.0]])
    torch.testing.assert_close(Int8Linear(linear)(x), linear(x).detach())


def test_a_layer_whose_sums_could_overflow_stays_as_it_is() -> None:
    linear = nn.Linear(140_000, 1, bias=False)
    nn.init.ones_(linear.weight)
    with torch.inference_mode():
        assert quantize(linear)(torch.ones(1, 140_000)).item() == pytest.approx(140_000)
    assert isinstance(quantize(nn.Linear(66_311, 1)), Int8Linear)
    assert isinstance(quantize(nn.Conv2d(7369, 1, 3)), nn.Conv2d)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_transformer_passes_over_what_its_mask_hides() -> None:
    """It gives its layers nested tensors then."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    module = nn.TransformerEncoder(layer, 2).eval()
    x, hidden = torch.randn(3, 5, 8), torch.arange(5) >= torch.tensor([[5], [2], [4]])
    with torch.inference_mode():
        expected = module(x, src_key_padding_mask=hidden)
        found = quantize(module)(x, src_key_padding_mask=hidden)
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0)
    assert torch.equal(found == 0, expected == 0)


def test_dtype_of_the_input_is_kept() -> None:
    linear = nn.Linear(4, 3).bfloat16()
    assert Int8Linear(linear)(torch.ones(2, 4, dtype=torch.bfloat16)).dtype is torch.bfloat16


def test_only_linear_layers_are_replaced_in_a_copy() -> None:
    module = Everything().train()
    copy = quantize(module)
    assert isinstance(module.first, nn.Linear)
    assert module.training
    assert not copy.training
    kinds = {name: type(part) for name, part in copy.named_modules()}
    assert kinds["first"] is kinds["tied_b"] is Int8Linear
    assert kinds["norm"] is nn.BatchNorm1d
    assert copy.norm.weight is not module.norm.weight
    assert isinstance(quantize(nn.Linear(2, 2)), Int8Linear)


@pytest.mark.parametrize("vnni", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": (2, 1)}, {"groups": 2}],
)
def test_convolutions(options: dict[str, Any], vnni: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    has_vnni = int8._has_vnni()
    monkeypatch.setattr(int8, "_has_vnni", lambda: vnni and has_vnni)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(8, 12, 3, **options), nn.ReLU())
    x = torch.randn(3, 8, 11, 10) * torch.tensor([1.0, 100.0, 0.0])[:, None, None, None]
    rounded = quantize(module)
    assert isinstance(rounded[0], Int8Conv2d)
    with torch.inference_mode():
        expected, found = module(x), rounded(x)
        again = pickle.loads(pickle.dumps(copy.deepcopy(rounded)))(x)
        alone = torch.cat([rounded(row[None]) for row in x])
    assert found.shape == expected.shape
    for a, b in zip(expected, found, strict=True):
        assert (a - b).abs().max() <= 0.03 * a.abs().max() + 1e-6
    assert torch.equal(found, again)
    torch.testing.assert_close(found, alone, atol=1e-3, rtol=1e-4)


def test_convolutions_that_stay() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Conv2d(8, 8, 3, padding="same"),
        nn.Conv2d(8, 8, 3, padding_mode="circular"),
    )
    assert all(type(part) is nn.Conv2d for part in quantize(module))


def test_the_weights_can_be_read() -> None:
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.out.weight

    module, x = Reading(), torch.randn(2, 5)
    torch.testing.assert_close(quantize(module)(x), module(x).detach(), atol=0.05, rtol=0)


@pytest.mark.parametrize("rows", [1, 4])
def test_transformers(rows: int) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(rows, 5, 16)
    copy = quantize(module)
    with torch.inference_mode():
        expected, found = module(x), copy(x)
    assert isinstance(copy.layers[0].linear1, Int8Linear)
    assert (found - expected).abs().max() < 0.1


def test_accuracy_on_digits_changes_by_a_row_at_most() -> None:
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = (
        torch.from_numpy(a)
        for a in train_test_split(x.astype("float32") / 16, y, test_size=360, random_state=0)
    )
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x_train), y_train).backward()
        optimizer.step()
    with torch.inference_mode():
        exact, rounded = module(x_test), quantize(module)(x_test)
    right, right_rounded = (int((out.argmax(1) == y_test).sum()) for out in (exact, rounded))
    assert right > 340
    assert abs(right - right_rounded) <= 1
    assert (exact - rounded).abs().max() < 0.02 * exact.abs().max()
