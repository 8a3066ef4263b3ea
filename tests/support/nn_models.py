"""What the tests of all models share."""

from __future__ import annotations

import copy
import json

import cloudpickle
import torch
from sklearn.datasets import load_digits
from torch import nn

from sparkdl.nn.flat import FlatModule
from sparkdl.saved.source import ModuleSource


def size(module):
    return sum(parameter.numel() for parameter in module.parameters())


def built_on_meta(factory, *args, **kwargs):
    """Build a module without memory for its parameters, to count them."""
    with torch.device("meta"):
        return factory(*args, **kwargs)


def tensors_of(output):
    return [output] if isinstance(output, torch.Tensor) else list(output)


def check_trainable(module, *inputs):
    """Every parameter gets a gradient; the module survives pickling, flattening and a description in JSON."""
    sum(tensor.square().sum() for tensor in tensors_of(module(*inputs))).backward()
    idle = [name for name, p in module.named_parameters() if p.grad is None or not p.grad.any()]
    assert not idle, f"no gradient: {idle}"
    module.zero_grad()
    module.eval()
    with torch.no_grad():
        expected = tensors_of(module(*inputs))
        described = ModuleSource.from_json(json.loads(json.dumps(ModuleSource.infer(module).to_json())))
        built = described.build().eval()
        built.load_state_dict(module.state_dict())
        pickled = cloudpickle.loads(cloudpickle.dumps(module))
        flat = FlatModule(copy.deepcopy(module)).module
        for other in (built, pickled, flat):
            for found, wanted in zip(tensors_of(other(*inputs)), expected, strict=True):
                torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def fit(module, loss, inputs, label, epochs, lr=1e-3, batch=50):
    """Train with Adam in plain torch; inputs are a tuple of tensors."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(module.parameters(), lr=lr)
    module.train()
    rows = len(inputs[0])
    for _ in range(epochs):
        for chosen in torch.randperm(rows).split(batch):
            optimizer.zero_grad()
            part = tuple(t[chosen] for t in label) if isinstance(label, tuple) else label[chosen]
            loss(module(*(tensor[chosen] for tensor in inputs)), part).mean().backward()
            optimizer.step()
    return module.eval()


def digits(rows=600, side=32):
    """Return images of handwritten digits, (rows, 1, side, side), and what they show."""
    pixels, label = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels[:rows]).float().reshape(-1, 1, 8, 8) / 8 - 1
    return nn.functional.interpolate(images, size=(side, side)), torch.from_numpy(label[:rows])


@torch.no_grad()
def accuracy(module, images, label):
    return (module(images).argmax(1) == label).float().mean().item()
