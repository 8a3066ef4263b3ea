import pytest
import torch
from support.nn_models import accuracy, built_on_meta, check_trainable, digits, fit, size
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.resnet import ResNet, ResNet20


def test_size_and_depth_are_those_of_the_paper():
    model = ResNet20()
    assert round(size(model) / 1e6, 2) == 0.27
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in model.modules()) == 20
    assert round(size(ResNet20(blocks=5)) / 1e6, 2) == 0.46
    assert round(size(ResNet20(blocks=9)) / 1e6, 2) == 0.85


def test_takes_images_and_flat_rows():
    torch.manual_seed(0)
    model = ResNet20(7, blocks=1).eval()
    images = torch.randn(2, 3, 32, 32)
    logits = model(images)
    assert logits.shape == (2, 7)
    assert torch.equal(model(images.reshape(2, -1)), logits)
    assert ResNet20(channels=1, blocks=1)(torch.randn(2, 1024)).shape == (2, 10)


def test_shortcut_without_convolutions_is_the_identity_on_the_first_channels():
    block = ResNet20(blocks=1).stages[1].eval()
    nn.init.zeros_(block.norm2.weight)
    x = torch.rand(2, 16, 8, 8)
    y = block(x)
    assert torch.equal(y[:, :16], x[:, :, ::2, ::2])
    assert not y[:, 16:].any()


def test_every_parameter_gets_a_gradient():
    torch.manual_seed(0)
    model = ResNet20(blocks=1)
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("sizes", [{"classes": 0}, {"blocks": 0}, {"channels": -1}])
def test_rejects_sizes_that_cannot_be(sizes):
    (name,) = sizes
    with pytest.raises(ConfigError, match=f"{name}={sizes[name]}: expected an integer of at least 1"):
        ResNet20(**sizes)


SIZES = [
    (18, 11_689_512),
    (34, 21_797_672),
    (50, 25_557_032),
    (101, 44_549_160),
    (152, 60_192_808),
]  # derived from table 1, with batch normalisation after each convolution and shortcuts B


@pytest.mark.parametrize(("layers", "expected"), SIZES)
def test_large_ones_have_the_size_and_depth_of_the_table(layers, expected):
    model = built_on_meta(ResNet, layers)
    assert size(model) == expected
    main = [m for name, m in model.named_modules() if "downsample" not in name]
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in main) == layers


def test_names_are_those_of_published_weights():
    names = set(built_on_meta(ResNet, 50).state_dict())
    assert {"conv1.weight", "bn1.running_mean", "fc.bias"} <= names
    assert {"layer1.0.downsample.0.weight", "layer4.2.bn3.num_batches_tracked"} <= names
    assert not any("downsample" in name for name in names if name.startswith("layer1.1"))


@pytest.mark.parametrize(("layers", "width"), [(18, 64), (50, 256)])
def test_features_are_what_the_last_layer_sees(layers, width):
    torch.manual_seed(0)
    model = ResNet(layers, classes=3, width=8).eval()
    images = torch.randn(2, 3, 40, 56)
    assert model.features(images).shape == (2, width)
    torch.testing.assert_close(model(images), model.fc(model.features(images)))


@pytest.mark.parametrize("layers", [18, 50])
def test_large_ones_can_be_trained_and_shipped(layers):
    torch.manual_seed(0)
    check_trainable(ResNet(layers, 3, channels=1, width=4, small=True), torch.randn(4, 1, 32, 32))


@pytest.mark.whole
def test_resnet18_learns_digits():
    torch.manual_seed(0)
    images, label = digits(side=16)
    model = ResNet(18, classes=10, channels=1, width=8, small=True)
    fit(model, nn.CrossEntropyLoss(), (images[:400],), label[:400], epochs=8, lr=3e-3)
    assert accuracy(model, images[400:], label[400:]) > 0.85


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": 20}, "ResNet: layers=20: expected one of 18, 34, 50, 101, 152"),
        ({"width": 0}, "ResNet: width=0: expected an integer of at least 1"),
    ],
)
def test_large_ones_reject_what_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ResNet(**arguments)
