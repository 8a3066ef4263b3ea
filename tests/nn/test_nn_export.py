from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn import DLRM, DeepFM, EmbeddingVariable, WideAndDeep, export
from sparkdl.nn.models.mlp import MLP

onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs pip install 'sparkdl[onnx]'",
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(self.norm(self.conv(x)).relu().mean((2, 3))))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.out = nn.Linear(5, 2)

    def forward(self, words: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.cat([self.embed(words), numbers], 1)
        return self.out(joined), joined.sum(1)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


IMAGES = torch.randn(2, 1, 6, 6)
PAIR = (torch.tensor([1, 4, 0]), torch.randn(3, 2))
WRITERS: list[Any] = [
    pytest.param(export.to_torch_export, id="torch.export"),
    pytest.param(export.to_torchscript, id="torchscript"),
    pytest.param(export.to_onnx, id="onnx", marks=onnx),
]


@pytest.mark.parametrize("write", WRITERS)
def test_images(write: Any, tmp_path: Path) -> None:
    module = Net()  # in training mode, as a fresh module is
    before = {name: value.clone() for name, value in module.state_dict().items()}
    write(module, IMAGES.numpy(), tmp_path / "model")
    assert (tmp_path / "model").stat().st_size > 0
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    "write", [*WRITERS[:2], pytest.param(export.to_onnx, id="onnx", marks=[onnx, pytest.mark.whole])]
)
def test_several_inputs_and_outputs(write: Any, tmp_path: Path) -> None:
    write(Two(), PAIR, tmp_path / "model")


@pytest.mark.parametrize("write", WRITERS)
def test_inputs_by_name(write: Any, tmp_path: Path) -> None:
    write(Two(), {"words": PAIR[0], "numbers": PAIR[1]}, tmp_path / "model")


@pytest.mark.parametrize("write", WRITERS)
def test_a_module_of_any_number_of_inputs(write: Any, tmp_path: Path) -> None:
    write(MLP(4, 2, limit=5.0), (torch.randn(3, 3), torch.randn(3)), tmp_path / "model")


def test_what_torch_export_wrote_takes_any_number_of_rows(tmp_path: Path) -> None:
    module = Net().eval()
    export.to_torch_export(module, IMAGES, tmp_path / "model.pt2")
    read = torch.export.load(tmp_path / "model.pt2").module()
    x = torch.randn(7, 1, 6, 6)
    torch.testing.assert_close(read(x), module(x))


@onnx
def test_what_onnx_wrote_takes_any_number_of_rows(tmp_path: Path) -> None:
    import onnxruntime

    module = Net().eval()
    export.to_onnx(module, IMAGES, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    x = torch.randn(7, 1, 6, 6)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(found, module(x).detach().numpy(), atol=1e-5)


def _rows(count: int) -> dict[str, Tensor]:
    categories = torch.randint(0, 5, (count, 2))
    return {
        "wide": torch.randint(0, 9, (count, 4)),
        "categories": categories,
        "numbers": torch.randn(count, 3),
    }


@onnx
@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        pytest.param(DeepFM([5, 7], numbers=3), ("categories", "numbers"), marks=pytest.mark.slow),
        (DLRM([5, 7], numbers=3), ("numbers", "categories")),
        pytest.param(
            WideAndDeep(9, [5, 7], numbers=3), ("wide", "categories", "numbers"), marks=pytest.mark.whole
        ),
    ],
    ids=["DeepFM", "DLRM", "WideAndDeep"],
)
def test_models_with_numbers_take_any_number_of_rows(
    module: nn.Module, inputs: tuple[str, ...], tmp_path: Path
) -> None:
    import onnxruntime

    module.eval()
    few, many = ([_rows(count)[name] for name in inputs] for count in (2, 5))
    export.to_onnx(module, tuple(few), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    feed = {given.name: value.numpy() for given, value in zip(session.get_inputs(), many, strict=True)}
    (found,) = session.run(None, feed)
    np.testing.assert_allclose(found, module(*many).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("write", [export.to_torch_export, export.to_torchscript])
def test_what_computes_something_else_is_an_error(write: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"differs by|cannot be written"):
        write(Branching(), torch.ones(2, 3), tmp_path / "model")


@pytest.mark.parametrize(
    "write", [pytest.param(export.to_onnx, marks=onnx), export.to_torch_export, export.to_torchscript]
)
def test_embedding_variables_have_no_other_format(write: Any, tmp_path: Path) -> None:
    module = nn.Sequential(EmbeddingVariable(4), nn.Flatten())
    with pytest.raises(ModelError, match="0 is an embedding variable, whose rows"):
        write(module, torch.tensor([1, 2]), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_module_that_cannot_be_exported(tmp_path: Path) -> None:
    class Printing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * float(np.asarray(x.sum().item()))

    with pytest.raises(ModelError, match=r"Printing cannot be written as torch\.export: "):
        export.to_torch_export(Printing(), torch.ones(2, 3), tmp_path / "model")


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (torch.ones(1, 3), r"at least two, got shapes \[\(1, 3\)\]"),
        ((torch.ones(2, 3), torch.ones(3, 3)), "the same number of rows"),
        (torch.tensor(1.0), "at least two"),
        ((), "at least two"),
        ("text", "got a str"),
        ({"x": [1, 2]}, "got a list"),
    ],
)
def test_examples_that_are_refused(example: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        export.to_torch_export(nn.Linear(3, 2), example, tmp_path / "model")


def test_onnx_without_its_packages_says_what_to_install(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"needs onnx, onnxscript, onnxruntime: pip install 'sparkdl\[onnx\]'"
    ):
        export.to_onnx(nn.Linear(3, 2), torch.ones(2, 3), tmp_path / "model")
