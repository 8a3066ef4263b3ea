import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sparkdl.exceptions import ModelError
from sparkdl.nn.batch import Batch, call
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import forward_backward
from sparkdl.nn.objective import LossObjective

ROWS = 7
LOSSES = {"scalar": nn.MSELoss(), "per sample": nn.MSELoss(reduction="none")}


def tensors(seed=0, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 3, generator=generator), torch.randn(rows, 2, generator=generator)


def linear(seed=0):
    torch.manual_seed(seed)
    return FlatModule(nn.Linear(3, 2))


def gradient(batch, loss, micro_batch_size=None, replica=None):
    replica = replica or linear()
    result = forward_backward(replica, batch, LossObjective(loss), micro_batch_size)
    return result, replica.grad.clone()


# -- mean loss ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_scalar_and_a_per_sample_loss_give_the_plain_gradient(loss):
    x, y = tensors()
    plain = linear().module
    plain.zero_grad(set_to_none=True)
    expected = functional.mse_loss(plain(x), y)
    expected.backward()
    result, found = gradient(Batch(x, y, None, ROWS), loss)
    assert (result.weight, result.rows) == (ROWS, ROWS)
    assert result.loss == pytest.approx(expected.item())
    torch.testing.assert_close(found, torch.cat([plain.weight.grad.flatten(), plain.bias.grad]))


def test_sample_weights_follow_the_hand_reference():
    x, y = tensors()
    w = torch.tensor([0.0, 1.0, 2.0, 0.5, 3.0, 0.0, 1.0], dtype=torch.float64)
    replica = linear()
    weight, bias = (p.detach().double().numpy() for p in replica.module.parameters())
    error = x.double().numpy() @ weight.T + bias - y.double().numpy()
    share = (w / w.sum()).numpy()
    expected = np.concatenate([((error * share[:, None]).T @ x.double().numpy()).ravel(), share @ error])
    result, found = gradient(Batch(x, y, w, ROWS), LOSSES["per sample"], replica=replica)
    assert result.weight == pytest.approx(7.5)
    assert result.loss == pytest.approx(float(share @ (error**2).mean(axis=1)))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("micro_batch_size", [1, 2, 3, 6, 7, 100])
@pytest.mark.parametrize("weight", [None, torch.tensor([0.0, 0, 2, 0.5, 3, 0, 1])], ids=["plain", "weighted"])
def test_micro_batches_give_the_gradient_of_the_whole_batch(micro_batch_size, weight):
    x, y = tensors()
    batch = Batch({"input": x}, y, weight, ROWS)
    whole, expected = gradient(batch, LOSSES["per sample"])
    result, found = gradient(batch, LOSSES["per sample"], micro_batch_size)
    torch.testing.assert_close(found, expected)
    assert result.loss == pytest.approx(whole.loss, rel=1e-5)
    assert (result.weight, result.rows) == (whole.weight, whole.rows)


def test_micro_batches_bound_the_rows_of_a_forward_pass():
    x, y = tensors()
    seen = []
    replica = linear()
    replica.module.register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    gradient(Batch(x, y, None, ROWS), LOSSES["scalar"], 3, replica)
    assert seen == [3, 3, 1]


def test_a_share_whose_weights_are_all_zero_leaves_a_zero_gradient():
    x, y = tensors()
    result, found = gradient(Batch(x, y, torch.zeros(ROWS), ROWS), LOSSES["per sample"])
    assert (result.loss, result.weight, result.rows) == (0.0, 0.0, ROWS)
    assert not found.any()


def test_a_second_pass_starts_from_zero():
    x, y = tensors()
    replica = linear()
    _, first = gradient(Batch(x, y, None, ROWS), LOSSES["scalar"], replica=replica)
    _, second = gradient(Batch(x, y, None, ROWS), LOSSES["scalar"], replica=replica)
    assert torch.equal(first, second)


class Spoiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("no derivative")


@pytest.mark.parametrize("scale", [1e-50, 1e38])
def test_weights_of_any_size_give_their_mean(scale):
    x, y = tensors()
    weight = torch.tensor([0.0, 0, 2, 1, 3, 0, 1], dtype=torch.float64)
    expected, _ = gradient(Batch(x, y, weight, ROWS), LOSSES["per sample"])
    result, _ = gradient(Batch(x, y, weight * scale, ROWS), LOSSES["per sample"])
    assert result.loss == pytest.approx(expected.loss, rel=1e-6)


WRONG = {
    "float": (lambda o, y: 1.0, None, "the loss returned a float; expected a torch.Tensor"),
    "none": (lambda o, y: None, None, "the loss returned a NoneType"),
    "rows": (lambda o, y: (o - y)[1:].mean(1), None, r"shape \(6,\) for 7 rows.*shape \(7,\)"),
    "transposed": (lambda o, y: (o - y).T, None, r"shape \(2, 7\) for 7 rows"),
    "one": (lambda o, y: o.mean().reshape(1), None, r"shape \(1,\) for 7 rows"),
    "scalar with weights": (LOSSES["scalar"], torch.ones(ROWS), "reduction='none'"),
    "complex": (
        lambda o, y: (o - y).mean() * 1j,
        None,
        r"returned complex64\[\]; expected a real floating-point tensor: take its \.abs\(\) or \.real",
    ),
    "count": (lambda o, y: (o > y).sum(), None, r"returned int64\[\].*a count cannot be minimised"),
    "hits": (lambda o, y: (o > y).any(1), None, r"returned bool\[7\].*a count cannot be minimised"),
    "integers per row": (lambda o, y: (o > y).sum(1), torch.ones(ROWS), r"returned int64\[7\]"),
    "meta": (lambda o, y: (o - y).mean().to("meta"), None, "the meta device, which has no values"),
    "backward": (
        lambda o, y: Spoiled.apply(o - y).mean(),
        None,
        "the backward pass failed: ValueError: no derivative",
    ),
    "detached": (lambda o, y: (o - y).detach().mean(), None, "does not depend on any trainable parameter"),
}


@pytest.mark.parametrize(("loss", "weight", "message"), WRONG.values(), ids=WRONG)
def test_wrong_losses_are_explained(loss, weight, message):
    x, y = tensors()
    with pytest.raises(ModelError, match=message):
        gradient(Batch(x, y, weight, ROWS), loss)


def test_without_a_label_the_loss_gets_the_input():
    x, _ = tensors()
    replica = FlatModule(nn.Linear(3, 3))
    result, _ = gradient(Batch(x, None, None, ROWS), nn.MSELoss(), replica=replica)
    assert result.loss == pytest.approx(functional.mse_loss(replica.module(x), x).item())


def test_losses_of_several_dimensions_are_averaged_per_row():
    batch = Batch(torch.zeros(2), torch.zeros(2), torch.tensor([1.0, 3.0]), 2)
    losses = torch.tensor([[[1.0, 3.0]], [[5.0, 7.0]]])
    assert LossObjective(lambda o, y: losses).of(None, batch).loss.item() == (2 * 1 + 6 * 3) / 4


# -- inputs and outputs -------------------------------------------------------------------------


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(3, 2)
        self.right = nn.Linear(2, 2)

    def forward(self, a, b):
        return {"sum": self.left(a) + self.right(b), "parts": (self.left(a), self.right(b))}


def two_losses(output, label):
    first, second = label if isinstance(label, tuple) else (label["first"], label["second"])
    return functional.mse_loss(output["sum"], first) + functional.mse_loss(output["parts"][1], second)


@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_tuples_and_dicts_of_inputs_outputs_and_labels(micro_batch_size):
    a, b = tensors()
    results = []
    for inputs, label in [((a, b), (b, b + 1)), ({"b": b, "a": a}, {"second": b + 1, "first": b})]:
        torch.manual_seed(0)
        replica = FlatModule(TwoTowers())
        results.append(gradient(Batch(inputs, label, None, ROWS), two_losses, micro_batch_size, replica))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][1].any()


def test_call_passes_one_tensor_positional_or_keyword_tensors():
    class Echo(nn.Module):
        def forward(self, *args, **kwargs):
            return args, kwargs

    x = torch.zeros(1)
    assert call(Echo(), x) == ((x,), {})
    assert call(Echo(), (x, x)) == ((x, x), {})
    assert call(Echo(), {"a": x}) == ((), {"a": x})


def test_narrow_cuts_every_tensor_of_a_batch():
    x = torch.arange(4)
    part = Batch((x, x + 10), {"y": x}, x, 4).narrow(1, 2)
    assert [t.tolist() for t in part.inputs] == [[1, 2], [11, 12]]
    assert (part.label["y"].tolist(), part.weight.tolist(), part.rows) == ([1, 2], [1, 2], 2)
    assert Batch(x, None, None, 4).narrow(0, 1).label is None


# -- failures -----------------------------------------------------------------------------------


def test_an_index_out_of_range_names_the_embedding():
    replica = FlatModule(nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 1)))
    with pytest.raises(ModelError, match=r"layer '0', Embedding\(5, 2\): .*integers from 0 to 4") as caught:
        gradient(Batch(torch.tensor([1, 5]), torch.zeros(2, 1), None, 2), nn.MSELoss(), None, replica)
    assert isinstance(caught.value.__cause__, IndexError)


def test_a_failing_loss_is_told_from_a_failing_layer():
    x, y = tensors()
    with pytest.raises(ModelError, match=r"the loss failed: .*The module ran on inputs float32\[7, 3\]"):
        gradient(Batch(x, y.long()[:, 0], None, ROWS), nn.KLDivLoss(reduction="nonsense"))


def test_a_loss_on_frozen_parameters_is_explained():
    x, y = tensors()
    replica = linear()
    replica.set_frozen([0, 1])
    with pytest.raises(ModelError, match="all parameters are frozen"):
        gradient(Batch(x, y, None, ROWS), LOSSES["scalar"], replica=replica)
    replica.set_frozen([1])
    with pytest.raises(ModelError, match=r"no gradient can flow. 1 of 2 parameters are frozen now: 'bias'"):
        gradient(Batch(x, y, None, ROWS), lambda o, y: replica.module.bias.sum(), replica=replica)
    replica.set_frozen([])
    assert gradient(Batch(x, y, None, ROWS), LOSSES["scalar"], replica=replica)[1].any()


def test_channels_last_restrides_images_alone():
    image = torch.zeros(2, 3, 4, 4)
    batch = Batch({"image": image, "ids": torch.zeros(2, 3, 4, 4).long()}, image, None, 2).channels_last()
    assert batch.inputs["image"].is_contiguous(memory_format=torch.channels_last)
    assert batch.inputs["ids"].is_contiguous()
    assert batch.label.is_contiguous()


def test_a_batch_of_the_cpu_stays_there():
    batch = Batch(torch.zeros(1), None, None, 1)
    assert batch.to("cpu") is batch
    assert batch.to("meta").inputs.is_meta
