import pytest
import torch
from support.nn_models import accuracy, built_on_meta, check_trainable, digits, fit, size
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.vgg import VGG


@pytest.mark.parametrize(("layers", "millions"), [(11, 133), (13, 133), (16, 138), (19, 144)])
def test_size_and_depth_are_those_of_the_paper(layers, millions):
    model = built_on_meta(VGG, layers)
    assert round(size(model) / 1e6) == millions  # table 2
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in model.modules()) == layers


def test_sizes_of_the_variants():
    assert size(built_on_meta(VGG, 16)) == 138_357_544
    assert size(built_on_meta(VGG, 16, batch_norm=True)) == 138_357_544 + 2 * 4_224
    assert size(built_on_meta(VGG, 16, classes=10, size=32, hidden=(), batch_norm=True)) == 14_728_266


def test_names_are_those_of_published_weights():
    names = list(built_on_meta(VGG, 16).state_dict())
    assert names[:4] == ["features.0.weight", "features.0.bias", "features.2.weight", "features.2.bias"]
    assert names[-2:] == ["classifier.6.weight", "classifier.6.bias"]


def test_takes_images_and_flat_rows():
    torch.manual_seed(0)
    model = VGG(11, classes=7, size=64, width=2, hidden=(5, 6)).eval()
    images = torch.randn(2, 3, 64, 64)
    assert model(images).shape == (2, 7)
    assert torch.equal(model(images.flatten(1)), model(images))


@pytest.mark.parametrize("batch_norm", [False, True])
def test_can_be_trained_and_shipped(batch_norm):
    torch.manual_seed(0)
    model = VGG(13, 4, size=32, channels=1, width=4, hidden=(8,), batch_norm=batch_norm, dropout=0.0)
    check_trainable(model, torch.randn(4, 1, 32, 32))


@pytest.mark.slow
def test_learns_digits():
    torch.manual_seed(0)
    images, label = digits()
    model = VGG(11, classes=10, size=32, channels=1, width=8, hidden=(), batch_norm=True)
    fit(model, nn.CrossEntropyLoss(), (images[:400],), label[:400], epochs=5, lr=3e-3)
    assert accuracy(model, images[400:], label[400:]) > 0.85


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": 12}, "layers=12: expected one of 11, 13, 16, 19"),
        ({"size": 33}, "size=33: expected a multiple of 32"),
        ({"classes": 0}, "classes=0: expected an integer of at least 1"),
        ({"dropout": 1.0}, "dropout=1.0: expected a number from 0 to below 1"),
    ],
)
def test_rejects_what_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        VGG(**arguments)
