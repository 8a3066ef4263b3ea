from __future__ import annotations

import json
import math
from collections import OrderedDict
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import Everything
from torch import Tensor, nn
from torch.nn import functional as F

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.models.lenet import LeNet5
from sparkdl.optim.clip import ClipByNorm
from sparkdl.saved.importing import find, path_of
from sparkdl.saved.source import ModuleSource, decode, encode
from sparkdl.saved.trust import Trust

OWN = Trust.of([__name__, "support"])


class Net(nn.Module):
    def __init__(self, hidden: int = 4, *, activation: type[nn.Module] = nn.ReLU, sizes: Any = ()) -> None:
        super().__init__()
        self.hidden = hidden
        self.activation = activation
        self.sizes = sizes
        self.body = nn.Sequential(nn.Linear(2, hidden), activation(), nn.Linear(hidden, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)

    class Inner(nn.Module):
        pass


class Forgetful(nn.Module):
    """Does not keep the argument that it was made with."""

    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.body = nn.Linear(2, hidden)


class Scaled(nn.Module):
    """Has tensors that the state_dict lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.tensor([1.0, 2.0])
        self.register_buffer("hidden", torch.ones(2), persistent=False)
        self.keep = [lambda x: x + 1]
        self.nan = float("nan")


class Holding(nn.Module):
    def __init__(self, inner: nn.Module, more: Any = ()) -> None:
        super().__init__()
        self.inner = inner
        self.more = nn.ModuleList(more)


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        raise RuntimeError("no GPU")


class Looking(nn.Module):
    """Cannot be built on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.size = int(torch.arange(3).sum().item())


def make(width: int, depth: int = 1) -> nn.Module:
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])


def unannotated(width):
    return nn.Linear(width, width)


def wrongly_annotated() -> nn.Module:
    return 3  # type: ignore[return-value]


def plain_loss(output: Tensor, label: Tensor) -> Tensor:
    return (output - label).square().mean()


def through_json(source: ModuleSource) -> ModuleSource:
    return ModuleSource.from_json(json.loads(json.dumps(source.to_json())), OWN)


# -- descriptions of calls ------------------------------------------------------------------------


def test_class_and_arguments() -> None:
    source = ModuleSource.of(Net, {"hidden": 8, "activation": nn.Tanh, "sizes": (1, [2, None])})
    assert source.path == f"{__name__}:Net"
    read = through_json(source)
    assert read == source
    module = read.build()
    assert isinstance(module, Net)
    assert (module.hidden, module.activation, module.sizes) == (8, nn.Tanh, (1, [2, None]))


def test_function_with_annotation() -> None:
    module = through_json(ModuleSource.of(make, {"width": 3, "depth": 2})).build()
    assert [tuple(p.shape) for p in module.parameters()] == [(3, 3), (3,)] * 2


def test_arguments_of_partials_are_kept_where_others_do_not_replace_them() -> None:
    source = ModuleSource.of(partial(partial(make, 3), depth=2), {"depth": 4})
    assert source.arguments == {"width": 3, "depth": 4}


def test_modules_among_the_arguments_are_new_ones_each_time() -> None:
    inner = nn.Linear(2, 3)
    source = through_json(ModuleSource.of(Holding, {"inner": inner, "more": [nn.ReLU(), nn.Linear(1, 1)]}))
    first, second = source.build(), source.build()
    assert first.inner is not second.inner is not inner
    assert first.inner.weight.shape == (3, 2)
    assert through_json(source) == source  # and it can be written again
    assert len(first.more) == 2


def test_nested_class() -> None:
    assert isinstance(through_json(ModuleSource.of(Net.Inner)).build(), Net.Inner)


def local_class() -> Any:
    class Local(nn.Module):
        pass

    return Local


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            lambda: nn.Linear(1, 1),
            "a lambda or defined inside of a function: move it to the top level of a file",
        ),
        (local_class(), "a lambda or defined inside of a function"),
        (
            type("Main", (nn.Module,), {"__module__": "__main__"}),
            "Main is defined in __main__ and cannot be imported",
        ),
        (type("Net", (nn.Module,), {"__module__": __name__}), "is not what .* is: move it"),
        (unannotated, "a function whose return annotation is one"),
        (3, "3 has no import path"),
        (dict, "may not be named in a saved model"),
    ],
)
def test_what_cannot_be_imported_again(factory: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModuleSource.of(factory)


def test_arguments_that_cannot_be_written_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"arguments of .*:Net\['sizes'\]\[1\]: .* is a set, expected numbers"
    ):
        ModuleSource.of(Net, {"sizes": [1, {2}]})
    with pytest.raises(ConfigError, match="argument x is positional only; pass arguments by name"):
        ModuleSource.of(partial(positional_only, 3))
    with pytest.raises(ConfigError, match="pass arguments by name"):
        ModuleSource.of(partial(make, 3, 4, 5))


def positional_only(x: int, /) -> nn.Module:
    return nn.Linear(x, x)


def test_build_tells_why_it_fails() -> None:
    with pytest.raises(ModelError, match=r"Failing\(\) failed: RuntimeError\('no GPU'\)"):
        ModuleSource(f"{__name__}:Failing").build()
    with pytest.raises(ModelError, match="returned a int, expected a torch.nn.Module"):
        ModuleSource(f"{__name__}:wrongly_annotated").build()
    with pytest.raises(ConfigError, match=r"nowhere:Net cannot be imported .*PYTHONPATH"):
        ModuleSource("nowhere:Net").build()


@pytest.mark.parametrize("value", [{}, {"path": 3, "arguments": {}}, {"path": "a:b", "arguments": [1]}])
def test_descriptions_that_are_none(value: Any) -> None:
    with pytest.raises(ConfigError, match="expected a module's path and arguments"):
        ModuleSource.from_json(value)


# -- nothing but modules, optimizers and losses is imported --------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "os:system",
        "subprocess:Popen",
        "subprocess:run",
        "builtins:eval",
        "torch:load",
        "torch.hub:load",
        "pickle:loads",
        "sparkdl.nn.serialize:loads",
        "torch.nn.modules.module:functools.partial",
        "numpy:load",
    ],
)
@pytest.mark.parametrize("form", ["$import", "$partial", "$build"])
def test_other_code_is_neither_imported_nor_called(path: str, form: str) -> None:
    value = {form: path, "positional": [], "arguments": {"command": "touch /tmp/never"}}
    with pytest.raises(ConfigError, match=r"a saved model may name; it was not imported|is no import path"):
        decode(value)
    with pytest.raises(ConfigError):
        ModuleSource(path, {}).build()


@pytest.mark.parametrize(
    "path", ["", "torch", "torch:", ":Net", "torch:nn Linear", "a b:c", "torch:__import__('os')"]
)
def test_paths_that_are_none(path: str) -> None:
    with pytest.raises(ConfigError, match="is not an import path such as"):
        find(path)


# -- descriptions of instances ----------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(3, 4, bias=False),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, groups=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout(0.2)),
        nn.Sequential(OrderedDict(a=nn.Linear(2, 3), b=nn.Sequential(nn.LayerNorm(3), nn.GELU()))),
        nn.Sequential(),
        nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True),
        nn.GRU(3, 4),
        nn.RNN(3, 4, nonlinearity="relu"),
        nn.Embedding(5, 3, padding_idx=0),
        nn.MultiheadAttention(8, 2, batch_first=True),
        nn.ModuleList([nn.Linear(1, 2), nn.Tanh()]),
        nn.ModuleDict({"a": nn.Linear(1, 2)}),
        nn.Sequential(nn.Linear(2, 3)).bfloat16(),
        Net(8, activation=nn.Tanh, sizes=(1, 2)),
        Forgetful(),
        Scaled(),
        Looking(),
        LeNet5(),
        Everything(),
        Holding(nn.Linear(1, 2), [nn.ReLU()]),
    ],
    ids=lambda module: type(module).__name__,
)
def test_instances_that_can_be_built_again(module: nn.Module) -> None:
    source = ModuleSource.of_instance(module)
    assert source is not None
    before = torch.get_rng_state()
    again = through_json(source)._twin(values=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert str(again) == str(module)
    shapes = {name: value.shape for name, value in module.state_dict().items()}
    assert {name: value.shape for name, value in again.state_dict().items()} == shapes


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    return module


def changed(module: nn.Module, **attributes: Any) -> nn.Module:
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def twice() -> nn.Module:
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.ReLU(), layer)


def hooked() -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Forgetful(5), "builds other parameters or buffers"),
        (tied(), "builds other parameters or buffers"),
        (twice(), "a layer is in a Sequential twice"),
        (hooked(), "attribute _forward_hooks is not what it is built with"),
        (changed(Net(), hidden=5), "builds other parameters"),
        (changed(Net(), extra=1), "attribute extra is not what it is built with"),
        (changed(Net(), body=nn.Linear(1, 1)), "builds other submodules"),
        (changed(Scaled(), scale=torch.tensor([1.0, 3.0])), "attribute scale is not"),
        (changed(Scaled(), hidden=torch.zeros(2)), "buffer hidden is not saved and was changed"),
        (
            nn.TransformerEncoderLayer(8, 2, batch_first=True),
            "no attribute 'd_model' to read its constructor's",
        ),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), "cannot be imported"),
        (local_class()(), "inside of a function"),
    ],
)
def test_instances_that_cannot(module: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModuleSource.infer(module)
    assert ModuleSource.of_instance(module) is None


def test_values_count_where_they_are_not_saved_apart() -> None:
    ModuleSource.infer(nn.BatchNorm1d(2), exact=True)
    with pytest.raises(ConfigError, match="values of parameters or buffers"):
        ModuleSource.infer(nn.Linear(2, 2), exact=True)


def test_a_source_is_checked_against_a_module() -> None:
    source = ModuleSource.of(make, {"width": 3})
    source.check(make(3))
    with pytest.raises(ConfigError, match="builds other parameters"):
        source.check(make(4))
    with pytest.raises(ConfigError, match="cannot be built again"):
        ModuleSource(f"{__name__}:Failing").check(make(3))


# -- values ------------------------------------------------------------------------------------

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.text()), inner)
    ),
    max_leaves=10,
)


def alike(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, float) and isinstance(theirs, float) and math.isnan(mine):
        return math.isnan(theirs)
    if isinstance(mine, list | tuple):
        return type(mine) is type(theirs) and len(mine) == len(theirs) and all(map(alike, mine, theirs))
    if isinstance(mine, dict):
        return list(mine) == list(theirs) and all(alike(v, theirs[k]) for k, v in mine.items())
    return type(mine) is type(theirs) and mine == theirs


@given(plain)
def test_plain_values_come_back(value: Any) -> None:
    assert alike(decode(json.loads(json.dumps(encode(value), allow_nan=False))), value)


@pytest.mark.parametrize(
    "value",
    [np.float32(0.5), np.int64(3), np.bool_(True), np.float64("inf")],
)
def test_numpy_numbers_become_pythons(value: Any) -> None:
    assert decode(encode(value)) == value.item()


@pytest.mark.parametrize(
    "value",
    [
        nn.ReLU,
        F.cross_entropy,
        F.gelu,
        F.prelu,
        F.logsigmoid,
        torch.relu,
        nn.init.xavier_uniform_,
        torch.optim.Adam,
        torch.float16,
        torch.bfloat16,
        plain_loss,
        Net.Inner,
    ],
)
def test_code_comes_back(value: Any) -> None:
    assert decode(json.loads(json.dumps(encode(value))), OWN) is value


def test_partials_losses_and_options_come_back() -> None:
    factory = decode(json.loads(json.dumps(encode(partial(torch.optim.Adam, lr=0.1, betas=(0.5, 0.9))))))
    assert (factory.func, factory.keywords) == (torch.optim.Adam, {"lr": 0.1, "betas": (0.5, 0.9)})
    loss = decode(
        json.loads(json.dumps(encode(nn.CrossEntropyLoss(torch.tensor([1.0, 3.0]), label_smoothing=0.1))))
    )
    assert torch.equal(loss.weight, torch.tensor([1.0, 3.0]))
    assert loss.label_smoothing == 0.1
    assert decode(json.loads(json.dumps(encode({"clip": ClipByNorm(2.0)})))) == {"clip": ClipByNorm(2.0)}


def test_tensors_come_back() -> None:
    for value in (
        torch.tensor([1.5, float("inf")]),
        torch.tensor([[1, 2]]),
        torch.tensor(True),
        torch.zeros(0),
    ):
        read = decode(json.loads(json.dumps(encode(value), allow_nan=False)))
        assert torch.equal(read, value)
        assert read.dtype is value.dtype


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(5000), "loss is a tensor of 5000 elements"),
        (torch.zeros(2, dtype=torch.bfloat16), "make it float32"),
        (object(), "loss: <object object at .*> is a object, expected numbers"),
        ([lambda: 0], r"loss\[0\]: .* is a lambda"),
        ({"a": partial(print)}, r"loss\['a'\]: .*may not be named"),
    ],
)
def test_values_that_cannot_be_written(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encode(value, "loss")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"$later": 1}, "'\\$later' is not known here: the value was written by a newer sparkdl"),
        ({"$tuple": 3}, "cannot be read"),
        ({"$dtype": "load"}, "'load' is not a dtype"),
        ({"$partial": "torch.optim.adam:Adam"}, "cannot be read"),
        ({"$tensor": ["a"], "dtype": "float32"}, "cannot be read"),
    ],
)
def test_values_that_cannot_be_read(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode(value)


def test_paths_are_those_that_find_takes() -> None:
    assert path_of(F.gelu) == "torch.nn.functional:gelu"
    assert find(path_of(nn.Linear)) is nn.Linear
