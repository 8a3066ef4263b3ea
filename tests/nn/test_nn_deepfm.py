from itertools import combinations

import pytest
import torch
from support.contract import auc, check_model, size, train

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.batch import Batch
from sparkdl.nn.losses import binary_cross_entropy
from sparkdl.nn.models.deepfm import DeepFM, pairwise_products


def clicks(rows):
    """Clicks that depend on how hidden vectors of user and item agree, and on a number."""
    tastes = torch.randn(2, 30, 4, generator=torch.Generator().manual_seed(7))
    categories = torch.randint(30, (rows, 2))
    numbers = torch.randn(rows, 1)
    agreement = (tastes[0, categories[:, 0]] * tastes[1, categories[:, 1]]).sum(1)
    label = (2 * agreement + numbers[:, 0] + torch.randn(rows) > 0).float()
    return Batch((categories, numbers), label, None, rows)


def loss(model, batch):
    return binary_cross_entropy(model(*batch.inputs), batch.label)


def test_size_with_the_defaults_of_the_paper():
    model = DeepFM((100, 50), numbers=3)
    machine = 11 * 153 + 1
    perceptron = (50 * 400 + 400) + 2 * (400 * 400 + 400) + 400
    assert size(model) == machine + perceptron


def test_contract():
    categories = torch.tensor([[0, 3], [2, 1]])
    check_model(lambda: DeepFM((3, 4), hidden=(16,)), categories)
    check_model(lambda: DeepFM((3, 4), 2, 4, (32, 16), 0.0), categories, torch.randn(2, 2))


def test_pairwise_products_are_those_of_the_definition():
    vectors = torch.randn(3, 5, 4, dtype=torch.float64)
    pairs = [(vectors[:, i] * vectors[:, j]).sum(1) for i, j in combinations(range(5), 2)]
    assert torch.allclose(pairwise_products(vectors), torch.stack(pairs).sum(0))


def test_a_number_multiplies_weight_and_vector():
    torch.manual_seed(0)
    model = DeepFM((3,), numbers=1, hidden=(8,)).eval()
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.ones_(model.weight_of_number)
    at = [model(torch.tensor([[1]]), torch.tensor([[x]])).item() for x in (0.0, 1.0, 3.0)]
    assert at[2] - at[0] == pytest.approx(3 * (at[1] - at[0]))


def test_learns_how_two_columns_agree():
    torch.manual_seed(0)
    model = DeepFM((30, 30), numbers=1, embedding=8, hidden=(32, 32), dropout=0.0)
    train(model, loss, lambda: clicks(1000), steps=200)
    test = clicks(4000)
    with torch.no_grad():
        assert auc(model(*test.inputs), test.label) > 0.93


@pytest.mark.parametrize("arguments", [{"cardinalities": ()}, {"embedding": 0}, {"dropout": -0.1}])
def test_rejects_what_cannot_be(arguments):
    (name,) = arguments
    with pytest.raises(ConfigError, match=f"{name}="):
        DeepFM(**{"cardinalities": (3,), **arguments})


def test_missing_numbers_are_an_error():
    with pytest.raises(ModelError, match=r"numbers has shape None; expected shape \(1, 2\)"):
        DeepFM((3,), numbers=2)(torch.tensor([[1]]))
