import math

import pytest
import torch
from support.nn_models import accuracy, built_on_meta, check_trainable, fit, size
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.transformer import TransformerClassifier, positions


def test_base_model_has_the_size_of_the_papers_encoder():
    attention = 4 * (512 * 512 + 512)
    feed_forward = (512 * 2048 + 2048) + (2048 * 512 + 512)
    norms = 2 * 2 * 512
    options = {"width": 512, "heads": 8, "layers": 6, "feed_forward": 2048, "norm_first": False}
    model = built_on_meta(TransformerClassifier, 100, 4, **options)
    encoder = size(model) - 100 * 512 - (512 * 4 + 4)
    assert encoder == 6 * (attention + feed_forward + norms) == 18_914_304


def test_positions():
    table = positions(5, 6)
    assert table.shape == (5, 6)
    assert table[3, 2].item() == pytest.approx(math.sin(3 / 10_000 ** (2 / 6)))
    assert table[4, 5].item() == pytest.approx(math.cos(4 / 10_000 ** (4 / 6)))


@pytest.mark.parametrize("norm_first", [False, True])
def test_padding_has_no_part(norm_first):
    torch.manual_seed(0)
    model = TransformerClassifier(9, 3, 8, 2, 2, 16, dropout=0.0, norm_first=norm_first)
    tokens = torch.tensor([[3, 4, 5, 0, 0, 0], [7, 8, 0, 0, 0, 0]])
    logits = model(tokens)
    assert logits.shape == (2, 3)
    torch.testing.assert_close(model(tokens[:, :3]), logits)
    torch.testing.assert_close(model(tokens[1:, :2]), logits[1:])
    with torch.no_grad():  # torch has another path for this
        torch.testing.assert_close(model.eval()(tokens), logits)
        assert model(torch.zeros(2, 4, dtype=torch.int64)).isfinite().all()


def test_order_counts():
    torch.manual_seed(0)
    model = TransformerClassifier(9, 3, 8, 2, 1, 16).eval()
    one, other = model(torch.tensor([[1, 2, 3], [3, 2, 1]]))
    assert not torch.allclose(one, other, atol=1e-3)


def test_layers_start_differently():
    torch.manual_seed(0)
    model = TransformerClassifier(9, 3, 8, 2, 2, 16)
    assert not torch.equal(model.encoder[0].linear1.weight, model.encoder[1].linear1.weight)


def test_can_be_trained_and_shipped():
    torch.manual_seed(0)
    check_trainable(TransformerClassifier(9, 3, 8, 2, 2, 16, dropout=0.0), torch.randint(0, 9, (5, 7)))


@pytest.mark.slow
def test_learns_which_token_comes_first():
    torch.manual_seed(0)
    tokens = torch.randint(3, 8, (800, 8))
    label = torch.arange(800) % 2
    tokens[:, 1], tokens[:, 5] = 1 + label, 2 - label
    model = TransformerClassifier(8, 2, width=32, heads=2, layers=1, feed_forward=64)
    fit(model, nn.CrossEntropyLoss(), (tokens[:600],), label[:600], epochs=15, lr=3e-3)
    assert accuracy(model, tokens[600:], label[600:]) > 0.97


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 30, "heads": 4}, "width=30, heads=4: expected an even width"),
        ({"width": 9, "heads": 3}, "width=9, heads=3: expected an even width"),
        ({"layers": 0}, "layers=0: expected an integer of at least 1"),
        ({"dropout": 1}, "dropout=1: expected a number from 0 to below 1"),
    ],
)
def test_rejects_what_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        TransformerClassifier(**{"vocabulary": 9, "classes": 2} | arguments)
