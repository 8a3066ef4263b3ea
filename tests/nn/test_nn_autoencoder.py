from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from support.nn_models import check_trainable, digits, fit, size
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.autoencoder import Autoencoder, ConvAutoencoder


def test_size_is_that_of_the_papers_network():
    widths = [784, 1000, 500, 250, 30, 250, 500, 1000, 784]
    expected = sum(before * after + after for before, after in pairwise(widths))
    assert size(Autoencoder()) == expected == 2_837_314


def test_size_of_the_convolutional_one():
    encoder = (1 * 16 * 9 + 16) + (16 * 32 * 9 + 32) + (32 * 49 * 32 + 32)
    decoder = (32 * 32 * 49 + 32 * 49) + (32 * 16 * 16 + 16) + (16 * 1 * 16 + 1)
    assert size(ConvAutoencoder()) == encoder + decoder


def test_shapes():
    torch.manual_seed(0)
    dense, conv = Autoencoder(64, (16,), 3), ConvAutoencoder(24, 3, (4, 8, 8), 5)
    images = torch.rand(2, 1, 8, 8)
    assert dense(images).shape == images.shape
    assert dense.encode(images).shape == (2, 3)
    assert conv(torch.rand(2, 3, 24, 24)).shape == (2, 3, 24, 24)
    assert conv.encode(torch.rand(2, 3, 24, 24)).shape == (2, 5)


def test_can_be_trained_and_shipped():
    torch.manual_seed(0)
    check_trainable(Autoencoder(64, (16,), 3), torch.rand(20, 64))
    check_trainable(ConvAutoencoder(8, 1, (4, 4), 5), torch.rand(20, 1, 8, 8))


def error_of_pca(train, test, code):
    components = PCA(code, random_state=0).fit(train)
    return np.square(components.inverse_transform(components.transform(test)) - test).mean()


@pytest.mark.whole
def test_codes_tell_more_than_principal_components():
    torch.manual_seed(0)
    images = ((digits(1500, side=8)[0] + 1) / 2).flatten(1)
    model = Autoencoder(64, (128,), 4)
    fit(model, nn.MSELoss(), (images[:1200],), images[:1200], epochs=60, lr=3e-3)
    with torch.no_grad():
        error = nn.functional.mse_loss(model(images[1200:]), images[1200:]).item()
    assert error < 0.85 * error_of_pca(images[:1200].numpy(), images[1200:].numpy(), 4)


@pytest.mark.slow
def test_convolutional_codes_tell_more_than_principal_components():
    torch.manual_seed(0)
    images = (digits(1500, side=8)[0] + 1) / 2
    model = ConvAutoencoder(8, 1, (16, 32), 4)
    fit(model, nn.BCEWithLogitsLoss(), (images[:1200],), images[:1200], epochs=40, lr=3e-3)
    with torch.no_grad():
        error = nn.functional.mse_loss(torch.sigmoid(model(images[1200:])), images[1200:]).item()
    flat = images.flatten(1).numpy()
    assert error < 0.85 * error_of_pca(flat[:1200], flat[1200:], 4)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (Autoencoder, {"code": 0}, "code=0: expected an integer of at least 1"),
        (Autoencoder, {"hidden": (4, 0)}, r"hidden=\(4, 0\): expected integers of at least 1"),
        (ConvAutoencoder, {"size": 30}, "size=30, .* a size that 4 divides"),
        (ConvAutoencoder, {"widths": ()}, "expected at least one width"),
    ],
)
def test_rejects_what_cannot_be(model, arguments, message):
    with pytest.raises(ConfigError, match=message):
        model(**arguments)
