"""What a file may name: nothing is imported in order to be judged."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError
from sparkdl.saved.importing import find
from sparkdl.saved.source import ModuleSource, decode, encode
from sparkdl.saved.trust import LISTED_ONLY, Trust


class Net(nn.Module):
    """Stands for a user's module."""


EVIL = """
from pathlib import Path
from torch import Tensor, nn
from torch.fx.graph_module import reduce_graph_module
import os
import torch
Path(__file__).with_name("ran").touch()
class Net(nn.Module):
    class Inner(nn.Module):
        pass
class Plain:
    system = os.system
def make() -> nn.Module:
    return Net()
def loss(output: Tensor, label: Tensor) -> Tensor:
    return output.mean()
"""


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module and a package; the file that importing one of them leaves."""
    (tmp_path / "evilmod.py").write_text(EVIL)
    (tmp_path / "evilpack").mkdir()
    for name in ("__init__", "nets", "__main__"):
        (tmp_path / "evilpack" / f"{name}.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("evil")]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    return tmp_path / "ran"


def every_form(path: str) -> list[Any]:
    """Return the ways in which a value can name code, and in which a listed class can have it as argument."""
    named: list[Any] = [
        {"$import": path},
        {"$partial": path, "positional": [], "arguments": {}},
        {"$build": path, "arguments": {}},
    ]
    nested: list[Any] = []
    for one in named:
        nested += [
            [one],
            {"a": {"$tuple": [1, one]}},
            {"$dict": [[1, one]]},
            {"$dict": [[one, 1]]},
            {"$build": "torch.nn.modules.container:Sequential", "arguments": {"layers": one}},
            {
                "$build": "torch.nn.modules.loss:TripletMarginWithDistanceLoss",
                "arguments": {"distance_function": one},
            },
            {"$partial": "torch.optim.adam:Adam", "positional": [one], "arguments": {}},
            {
                "$partial": "torch.optim.lr_scheduler:LambdaLR",
                "positional": [],
                "arguments": {"lr_lambda": one},
            },
            {"$tensor": [one], "dtype": "float32"},
        ]
    return named + nested


UNLISTED = [
    "os:system",
    "unittest.__main__:main",
    "torch.fx.graph_module:reduce_graph_module",
    "torchmetrics.functional.text.bert:_read_csv_from_url",
    "torch.nn.modules.module:torch.hub.load",
    "torch.nn.modules.linear:Linear.__init__",
    "torch.nn.functional:handle_torch_function",
    "torch.hub:load",
    "torch.jit:load",
    "torch:load",
    "numpy:load",
    "numpy:fromfile",
    "sparkdl.data.store.partition:np.load",
    "sparkdl.nn.serialize:loads",
    "sparkdl.cli.submit.command:Submission",
    "sparkdl.train.hooks.checkpoint:Checkpoint",
    "torchmetrics.text.bert:BERTScore",
    "evilmod:Net",
    "evilmod:make",
    "evilpack.nets:Net",
    "sparkdl_evil:Net",
    "torchevil.nn.modules.linear:Linear",
]


@pytest.mark.parametrize("path", UNLISTED)
def test_what_is_not_listed_is_refused_before_it_is_imported(
    path: str, evil: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = importlib.import_module

    def watched(name: str, *args: Any) -> Any:
        asked.append(name)
        return real(name, *args)

    monkeypatch.setattr("sparkdl.saved.importing.import_module", watched)
    module = path.partition(":")[0]
    for value in every_form(path):
        with pytest.raises(ConfigError) as caught:
            decode(value)
        assert caught.value.code == "config-trust"
        with pytest.raises(ConfigError, match="was not imported"):
            ModuleSource.from_json({"path": "torch.nn.modules.linear:Linear", "arguments": {"x": value}})
    with pytest.raises(ConfigError, match="was not imported"):
        ModuleSource.from_json({"path": path, "arguments": {}})
    assert set(asked) <= {name for name in asked if name.startswith(("torch.nn.modules", "torch.optim"))}
    assert module not in asked or module == "torch.nn.modules.linear"
    assert not evil.exists()


@pytest.mark.parametrize(
    "path", [None, 3, ["os:system"], {"a": 1}, "", "torch", "..os:system", "os.:system", "a:b\n"]
)
def test_paths_that_are_none(path: Any) -> None:
    for value in ({"$import": path}, {"$build": path, "arguments": {}}):
        with pytest.raises(ConfigError, match="is not an import path|cannot be read"):
            decode(value, Trust(everything=True))


# -- trust ------------------------------------------------------------------------------------------


def test_what_the_caller_trusts_is_imported(evil: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"load\(path, trust=\['evilpack\.nets'\]\), or .*sparkdl\.ml\.trust\('evilpack\.nets'\)",
    ):
        decode({"$import": "evilpack.nets:Net"})
    assert not evil.exists()
    for entries in ("evilpack", ["other", "evilpack.nets"], "other, evilpack.nets", "evilpack.nets:Net"):
        trust = Trust.of(entries)
        found = decode({"$import": "evilpack.nets:Net"}, trust)
        assert found.__name__ == "Net"
        source = ModuleSource.from_json({"path": "evilpack.nets:Net", "arguments": {}}, trust)
        assert isinstance(source.build(), found)
    inner = "evilpack.nets:Net.Inner"
    assert decode({"$import": inner}, Trust.of("evilpack")).__qualname__ == "Net.Inner"
    assert decode({"$import": "evilpack.nets:loss"}, Trust.of("evilpack")).__name__ == "loss"
    with pytest.raises(ConfigError, match="not imported"):
        decode({"$import": inner}, Trust.of("evilpack.nets:Net"))


def test_a_class_that_is_given_is_trusted() -> None:
    value = encode({"module": Net, "factory": partial(Net)})
    with pytest.raises(ConfigError, match="was not imported"):
        decode(value)
    assert decode(value, Trust.of(Net))["module"] is Net
    assert decode(value, Trust.of([Net]))["factory"].func is Net


@pytest.mark.parametrize(
    ("prefix", "path"),
    [
        ("evil", "evilmod:Net"),
        ("evilpac", "evilpack.nets:Net"),
        ("evilpack.net", "evilpack.nets:Net"),
        ("evilpack.nets", "evilpack:Net"),
        ("evilpack.nets:Ne", "evilpack.nets:Net"),
        ("nets", "evilpack.nets:Net"),
        ("evilpack", "evilpack.__main__:Net"),
    ],
)
def test_prefixes_count_by_components(prefix: str, path: str, evil: Path) -> None:
    with pytest.raises(ConfigError, match="was not imported"):
        decode({"$import": path}, Trust.of(prefix))
    assert not evil.exists()


@pytest.mark.parametrize(
    "path",
    [
        "evilmod:os.system",
        "evilmod:torch.hub.load",
        "evilmod:torch.fx.graph_module.reduce_graph_module",
        "evilmod:Path",
        "evilmod:Plain",
        "evilmod:Plain.system",
        "evilmod:reduce_graph_module",
        "evilmod:Net.register_forward_hook",
        "evilmod:nn.Linear",
    ],
)
def test_no_way_leads_out_of_a_trusted_module(path: str, evil: Path) -> None:
    trust = Trust.of("evilmod")
    for read in (
        lambda: decode({"$import": path}, trust),
        lambda: decode({"$build": path, "arguments": {}}, trust),
        lambda: ModuleSource.from_json({"path": path, "arguments": {}}, trust),
    ):
        with pytest.raises(ConfigError, match="may name; it was not|may not be named|cannot be imported"):
            read()


def test_what_a_trusted_module_does_when_it_is_imported_is_an_error_of_its_own(evil: Path) -> None:
    for code in ("raise SystemExit(3)", "1 / 0", "def"):
        evil.with_name("evilmod.py").write_text(code)
        importlib.invalidate_caches()
        with pytest.raises(ConfigError, match="evilmod:Net cannot be imported"):
            decode({"$import": "evilmod:Net"}, Trust.of("evilmod"))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("os", "Trust the one class"),
        ("torch", "Trust the one class"),
        ("torch.nn.utils", "Trust the one class"),
        ("sparkdl", "Trust the one class"),
        ("builtins", "Trust the one class"),
        ("my-package", "expected a package"),
        ("a..b", "expected a package"),
        ("a:", "expected a package"),
        ("*", "expected a package"),
        ([3], "expected names of packages"),
        ([partial(Net)], "expected a class"),
    ],
)
def test_what_nobody_can_trust(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trust.of(entry)


def test_single_names_of_torch_can_be_trusted() -> None:
    path = "torch.nn.utils.parametrize:ParametrizationList"
    assert not LISTED_ONLY.admits(path)
    assert find(path, Trust.of(path)).__name__ == "ParametrizationList"
    with pytest.raises(ConfigError, match="may not be named"):  # it is no part of a model
        find("os:system", Trust.of("os:system"))


def test_trusts_add_up() -> None:
    both = Trust.of("a") | Trust.of(["b", "c.d"])
    assert [both.admits(path) for path in ("a.x:Y", "b:Y", "c:Y", "c.d:Y")] == [True, True, False, True]
    assert not Trust.of(()).prefixes
    assert Trust.of([], everything=True).admits("os:system")


def test_public_names_are_read_too() -> None:
    assert decode({"$import": "torch.nn:Linear"}) is nn.Linear
    assert decode({"$import": "torch.optim:Adam"}) is torch.optim.Adam


def plain(output: Tensor, label: Tensor) -> Tensor:
    return (output - label).mean()


def test_what_the_caller_describes_needs_no_trust() -> None:
    assert ModuleSource.of(Net).build().__class__ is Net
    assert encode(plain) == {"$import": f"{__name__}:plain"}


def test_deep_values_are_an_error_of_ours() -> None:
    value: Any = {"$import": "torch.nn:Linear"}
    for _ in range(900):
        value = {"$tuple": [value]}
    with pytest.raises(ConfigError):
        decode(value)
