import pytest
import torch
from support.nn_models import accuracy, check_trainable, fit, size
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.recurrent import RecurrentClassifier, lengths


def test_size_follows_from_the_equations():
    # Each gate has a matrix for the input and one for the state, and in torch a bias for either.
    gate = 5 * 7 + 7 * 7 + 2 * 7
    assert size(RecurrentClassifier(11, 3, embedding=5, hidden=7)) == 11 * 5 + 4 * gate + (7 * 3 + 3)
    both = RecurrentClassifier(11, 3, embedding=5, hidden=7, cell="gru", bidirectional=True)
    assert size(both) == 11 * 5 + 2 * 3 * gate + (14 * 3 + 3)


def test_lengths():
    tokens = torch.tensor([[5, 0, 2, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    assert lengths(tokens).tolist() == [3, 1, 5]


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_is_not_read(cell, bidirectional):
    torch.manual_seed(0)
    model = RecurrentClassifier(9, 3, 4, 6, cell=cell, layers=2, bidirectional=bidirectional, dropout=0.5)
    model.eval()
    tokens = torch.tensor([[3, 4, 5, 0, 0, 0], [7, 8, 0, 0, 0, 0]])
    logits = model(tokens)
    assert logits.shape == (2, 3)
    torch.testing.assert_close(model(tokens[:, :3]), logits)
    torch.testing.assert_close(model(tokens[1:, :2]), logits[1:])
    assert model(torch.zeros(2, 4, dtype=torch.int64)).isfinite().all()


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_can_be_trained_and_shipped(cell):
    torch.manual_seed(0)
    model = RecurrentClassifier(9, 3, 4, 6, cell=cell, layers=2, bidirectional=True)
    check_trainable(model, torch.randint(0, 9, (5, 7)))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_learns_which_token_comes_first(cell):
    torch.manual_seed(0)
    tokens = torch.randint(3, 8, (600, 8))
    label = torch.arange(600) % 2
    tokens[:, 1], tokens[:, 5] = 1 + label, 2 - label
    model = RecurrentClassifier(8, 2, embedding=8, hidden=16, cell=cell)
    fit(model, nn.CrossEntropyLoss(), (tokens[:400],), label[:400], epochs=15, lr=1e-2)
    assert accuracy(model, tokens[400:], label[400:]) > 0.97


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cell": "rnn"}, "cell='rnn': expected one of 'lstm', 'gru'"),
        ({"hidden": 0}, "hidden=0: expected an integer of at least 1"),
        ({"dropout": 1}, "dropout=1: expected a number from 0 to below 1"),
    ],
)
def test_rejects_what_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        RecurrentClassifier(**{"vocabulary": 9, "classes": 2} | arguments)
