import pytest
import torch
from support.contract import auc, check_model, size, train

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.batch import Batch
from sparkdl.nn.losses import binary_cross_entropy
from sparkdl.nn.models.wide_and_deep import WideAndDeep


def crossed(rows):
    """Clicks that depend on a cross of two columns, which the wide part gets hashed, and on a number."""
    effect = torch.randn(20, 20, generator=torch.Generator().manual_seed(7))
    categories = torch.randint(20, (rows, 2))
    numbers = torch.randn(rows, 1)
    cross = (categories[:, 0] * 20 + categories[:, 1]) % 397
    wide = torch.stack([cross, 397 + categories[:, 0]], 1)
    logit = 3 * effect[categories[:, 0], categories[:, 1]] + 2 * numbers[:, 0].abs()
    label = (logit + torch.randn(rows) > 1.5).float()
    return Batch((wide, categories, numbers), label, None, rows)


def loss(model, batch):
    return binary_cross_entropy(model(*batch.inputs), batch.label)


def test_size_is_that_of_the_formula():
    model = WideAndDeep(1000, (10, 20, 30), numbers=4, embedding=8, hidden=(16, 12))
    perceptron = (28 * 16 + 16) + (16 * 12 + 12) + (12 + 1)
    assert size(model) == 1000 + 8 * 60 + perceptron


def test_contract():
    wide, categories = torch.tensor([[1, 9], [4, 4]]), torch.tensor([[0, 3], [2, 1]])
    check_model(lambda: WideAndDeep(10, (3, 4), 0, 4, (16, 16), 0.2), wide, categories)
    check_model(lambda: WideAndDeep(10, (3, 4), 2, 4, (16,)), wide, categories, torch.randn(2, 2))
    check_model(lambda: WideAndDeep(10, (3, 4), 2, hidden=()), wide, categories, torch.randn(2, 2))


def test_wide_part_adds_the_weights_of_the_active_features():
    model = WideAndDeep(10, (3,), hidden=(4,)).eval()
    categories = torch.tensor([[1]])
    before = model(torch.tensor([[2, 5]]), categories)
    with torch.no_grad():
        model.wide.weight[5] += 0.5
        model.wide.weight[6] += 9
    assert torch.allclose(model(torch.tensor([[2, 5]]), categories) - before, torch.tensor([0.5]))


def test_learns_a_cross_and_a_number():
    torch.manual_seed(0)
    model = WideAndDeep(417, (20, 20), numbers=1, embedding=4, hidden=(32, 16))
    train(model, loss, lambda: crossed(1000), steps=200)
    test = crossed(4000)
    with torch.no_grad():
        assert auc(model(*test.inputs), test.label) > 0.93


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wide_features": 0}, "wide_features=0: expected an integer of at least 1"),
        ({"cardinalities": (3, 0)}, r"cardinalities=\(3, 0\): expected integers of at least 1"),
        ({"cardinalities": ()}, "expected at least one categorical column"),
        ({"numbers": -1}, "numbers=-1"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_rejects_what_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        WideAndDeep(**{"wide_features": 5, "cardinalities": (3,), **arguments})


def test_numbers_that_were_not_announced_are_an_error():
    with pytest.raises(ModelError, match="expected none"):
        WideAndDeep(5, (3,))(torch.tensor([[1]]), torch.tensor([[1]]), torch.randn(1, 1))
