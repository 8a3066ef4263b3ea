import pytest
import torch
from support.nn_models import accuracy, check_trainable, fit, size
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.textcnn import TextCNN


def test_size_follows_from_the_sizes_of_the_paper():
    filters = sum(width * 300 * 100 + 100 for width in (3, 4, 5))
    assert size(TextCNN(vocabulary=1_000, classes=2)) == 1_000 * 300 + filters + (300 * 2 + 2)


@pytest.mark.parametrize("length", [1, 4, 5, 9])
def test_gives_logits_for_texts_of_any_length(length):
    torch.manual_seed(0)
    model = TextCNN(20, 3, embedding=4, filters=2).eval()
    tokens = torch.randint(1, 20, (2, length))
    assert model(tokens).shape == (2, 3)
    endless = torch.cat([tokens, torch.zeros(2, 40, dtype=torch.int64)], 1)
    x = model.embed(endless).transpose(1, 2)
    strongest = [torch.relu(convolution(x)).amax(2) for convolution in model.convolutions]
    expected = model.head(torch.cat(strongest, 1))
    for filled in (0, 1, 3, 9):  # as by longer texts of a batch
        torch.testing.assert_close(model(endless[:, : length + filled]), expected)


def test_can_be_trained_and_shipped():
    torch.manual_seed(0)
    model = TextCNN(20, 3, embedding=4, filters=2, widths=(2, 3), dropout=0.0)
    check_trainable(model, torch.randint(0, 20, (8, 6)))
    assert not model.embed.weight[0].any()


@pytest.mark.whole
def test_learns_to_find_a_phrase():
    """Half of the texts hold the tokens 2 3 4 in this order, all hold them in another."""
    torch.manual_seed(0)
    tokens = torch.randint(5, 30, (600, 16))
    label = torch.arange(600) % 2
    tokens[:, 3:6] = torch.tensor([4, 3, 2])
    tokens[label == 1, 9:12] = torch.tensor([2, 3, 4])
    model = TextCNN(30, 2, embedding=16, filters=8)
    fit(model, nn.CrossEntropyLoss(), (tokens[:400],), label[:400], epochs=15, lr=1e-2)
    assert accuracy(model, tokens[400:], label[400:]) > 0.97


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocabulary": 0}, "vocabulary=0: expected an integer of at least 1"),
        ({"widths": ()}, r"widths=\(\): expected at least one width"),
        ({"widths": (3, 0)}, r"widths=\(3, 0\): expected integers of at least 1"),
        ({"dropout": 2}, "dropout=2: expected a number from 0 to below 1"),
    ],
)
def test_rejects_what_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        TextCNN(**{"vocabulary": 9, "classes": 2} | arguments)
