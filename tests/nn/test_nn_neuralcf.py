from functools import partial

import pytest
import torch
from support.contract import auc, check_model, size, train

from sparkdl.exceptions import ConfigError
from sparkdl.nn.batch import Batch
from sparkdl.nn.losses import binary_cross_entropy
from sparkdl.nn.models.neuralcf import NeuralCF

MODELS = {"NeuMF": {}, "GMF": {"embedding": 0}, "MLP": {"mf_embedding": 0}}


def likes(rows):
    """Users like the items of their own kind; kinds are the ids' remainders."""
    user, item = torch.randint(40, (rows,)), torch.randint(60, (rows,))
    return Batch((user, item), (user % 4 == item % 4).float(), None, rows)


@pytest.mark.parametrize("name", MODELS)
def test_contract(name):
    user, item = torch.tensor([0, 1, 2]), torch.tensor([2, 1, 0])
    make = partial(NeuralCF, 3, 3, **{"embedding": 8, "mf_embedding": 8, "hidden": (16,), **MODELS[name]})
    check_model(make, user, item)


def test_sizes_of_the_parts():
    make = partial(NeuralCF, 943, 1682, hidden=(32, 16, 8))
    perceptron = (32 * 32 + 32) + (32 * 16 + 16) + (16 * 8 + 8)
    assert size(make(embedding=0, mf_embedding=8)) == 2625 * 8 + 9  # GMF with 8 factors
    assert size(make(embedding=16, mf_embedding=0)) == 2625 * 16 + perceptron + 9
    assert size(make(embedding=16, mf_embedding=8)) == 2625 * 24 + perceptron + 17


def test_gmf_is_the_one_of_equation_9():
    model = NeuralCF(5, 9, embedding=0, mf_embedding=4)
    user, item = torch.tensor([3]), torch.tensor([7])
    product = model.mf_user.weight[3] * model.mf_item.weight[7]
    assert torch.allclose(model(user, item), model.head.weight @ product + model.head.bias)


def test_ids_may_be_a_table_of_candidates():
    model = NeuralCF(5, 9)
    user, item = torch.tensor([[3], [1]]).expand(2, 4), torch.randint(9, (2, 4))
    logits = model(user, item)
    assert logits.shape == (2, 4)
    assert torch.allclose(logits[1], model(user[1], item[1]), atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_learns_who_likes_what(name):
    torch.manual_seed(0)
    model = NeuralCF(40, 60, **{"embedding": 16, "mf_embedding": 16, "hidden": (32, 16), **MODELS[name]})
    train(
        model,
        lambda module, batch: binary_cross_entropy(module(*batch.inputs), batch.label),
        partial(likes, 500),
        steps=200,
        lr=2e-2,
    )
    test = likes(2000)
    with torch.no_grad():
        assert auc(model(*test.inputs), test.label) > 0.98


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"users": 0}, "NeuralCF: users=0: expected an integer of at least 1"),
        ({"hidden": (8, 0)}, r"NeuralCF: hidden=\(8, 0\)"),
        ({"embedding": 0, "mf_embedding": 0}, "expected one of them to be positive"),
    ],
)
def test_rejects_what_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        NeuralCF(**{"users": 3, "items": 3, **arguments})
