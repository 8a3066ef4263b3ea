import pytest
import torch
from support.nn_models import accuracy, built_on_meta, check_trainable, digits, fit, size
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.inception import GoogLeNet, Inception, googlenet_loss


def test_size_is_that_of_the_paper():
    table = [2.7, 112, 159, 380, 364, 437, 463, 580, 840, 1072, 1388, 1000]  # column "params", in 1,024
    separable = 2.7 - 9_472 / 1024  # the table's first layer is a separable convolution
    assert size(built_on_meta(GoogLeNet)) / 1024 + separable == pytest.approx(sum(table), rel=0.005)


def test_sizes_of_the_variants():
    auxiliary = (512 * 128 + 528 * 128 + 2 * 128) + 2 * (2048 * 1024 + 1024 + 1024 * 1000 + 1000)
    assert size(built_on_meta(GoogLeNet)) == 6_998_552
    assert size(built_on_meta(GoogLeNet, auxiliary=True)) == 6_998_552 + auxiliary == 13_378_280
    assert size(built_on_meta(Inception, 192, 64, 96, 128, 16, 32, 32)) == 163_696


@pytest.mark.parametrize("batch_norm", [False, True])
def test_takes_images_and_flat_rows(batch_norm):
    torch.manual_seed(0)
    model = GoogLeNet(classes=7, size=40, channels=1, batch_norm=batch_norm).eval()
    images = torch.randn(2, 1, 40, 40)
    assert model(images).shape == (2, 7)
    assert torch.equal(model(images.flatten(1)), model(images))


def test_auxiliary_classifiers_work_in_training_only():
    torch.manual_seed(0)
    model = GoogLeNet(classes=3, size=96, auxiliary=True)
    images, label = torch.randn(2, 3, 96, 96), torch.tensor([0, 2])
    output = model(images)
    assert [logits.shape for logits in output] == [(2, 3)] * 3
    last, one, other = (nn.functional.cross_entropy(x, label, reduction="none") for x in output)
    torch.testing.assert_close(googlenet_loss(output, label), last + 0.3 * (one + other))
    logits = model.eval()(images)
    torch.testing.assert_close(
        googlenet_loss(logits, label), nn.functional.cross_entropy(logits, label, reduction="none")
    )


def test_can_be_trained_and_shipped():
    torch.manual_seed(0)
    check_trainable(GoogLeNet(3, size=79, auxiliary=True, batch_norm=True), torch.randn(4, 3, 79, 79))


@pytest.mark.slow
def test_learns_digits():
    torch.manual_seed(0)
    images, label = digits()
    model = GoogLeNet(classes=10, size=32, channels=1, batch_norm=True)
    fit(model, nn.CrossEntropyLoss(), (images[:400],), label[:400], epochs=5)
    assert accuracy(model, images[400:], label[400:]) > 0.65


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 31}, "size=31, auxiliary=False: expected at least 32"),
        ({"size": 78, "auxiliary": True}, "size=78, auxiliary=True: expected at least 79"),
        ({"channels": 0}, "channels=0: expected an integer of at least 1"),
        ({"dropout": -0.1}, "dropout=-0.1: expected a number from 0"),
    ],
)
def test_rejects_what_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        GoogLeNet(**arguments)
