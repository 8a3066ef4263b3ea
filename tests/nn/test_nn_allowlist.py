"""The list: complete where it should be, and nothing on it can do harm."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from torch import nn

import sparkdl.metrics
import sparkdl.nn
import sparkdl.optim
from sparkdl.exceptions import ConfigError
from sparkdl.saved import importing
from sparkdl.saved.allowlist import LISTED, NAMES
from sparkdl.saved.source import decode, encode

OLD_RULE = Path(__file__).parents[1] / "support" / "old_rule.py"
KNOWN_HARM = {
    "torch.fx.graph_module:reduce_graph_module",
    "torch.fx._lazy_graph_module:reduce_graph_module",
    "torchmetrics.functional.text.bert:_read_csv_from_url",
}


def resolved() -> dict[str, Any]:
    """What is listed and in the packages that are installed."""
    found = {}
    for module, names in NAMES.items():
        try:
            home = importlib.import_module(module)
        except ImportError:  # of another version of torch
            continue
        found |= {f"{module}:{name}": getattr(home, name) for name in names if hasattr(home, name)}
    return found


def check_unreachable(scope: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [sys.executable, str(OLD_RULE), scope], check=True, capture_output=True, text=True, timeout=3000
    )
    before = done.stdout.split()
    assert len(before) > least
    assert set(before) >= KNOWN_HARM
    outside = [path for path in before if path not in LISTED]
    assert set(outside) >= KNOWN_HARM

    def never(name: str) -> Any:
        raise AssertionError(f"{name} was imported")

    monkeypatch.setattr(importing, "import_module", never)
    for path in outside:
        for value in ({"$import": path}, {"$build": path, "arguments": {}}, {"$partial": path}):
            with pytest.raises(ConfigError):
                decode(value)


@pytest.mark.whole
def test_nothing_else_that_the_old_rule_admitted_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    check_unreachable("fast", 3000, monkeypatch)


@pytest.mark.slow
def test_nothing_else_in_any_module_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    check_unreachable("all", 5000, monkeypatch)


def test_what_is_listed_is_what_it_should_be() -> None:
    allowed = (nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    for path, target in resolved().items():
        if isinstance(target, type):
            assert issubclass(target, allowed) or path.startswith("sparkdl."), path
        else:
            home = (
                "torch:",
                "torch.nn.functional:",
                "torch.nn.init:",
                "sparkdl.nn.",
                "sparkdl.hf.",
                "sparkdl.saved.",
            )
            assert path.startswith(home), path
            assert isinstance(target, types.FunctionType | types.BuiltinFunctionType), path


HARM = {"open", "eval", "exec", "compile", "__import__", "import_module", "urlopen", "urlretrieve", "system"}
HARM |= {
    "Popen",
    "run",
    "check_call",
    "from_pretrained",
    "download",
    "unlink",
    "remove_file",
    "mkdir",
    "makedirs",
}
FIXED = {"torch.nn.functional:interpolate", "torch.nn.functional:pad"}  # import one module of torch
MAKERS = ("__new__", "__init__", "__post_init__")


def calls(function: Any) -> set[str]:
    """Return the names that a function calls."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # in C, or made by dataclass
        return set()
    found = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {getattr(func, "id", None) or getattr(func, "attr", "") for func in found}


def test_nothing_that_is_listed_opens_or_imports_what_it_is_given() -> None:
    for path, target in resolved().items():
        made = [target]
        if isinstance(target, type):
            made = [vars(cls).get(name) for cls in target.__mro__ for name in MAKERS]
        for function in filter(None, made):
            assert path in FIXED or not calls(function) & HARM, path


# torch's classes that are not listed, and why
NOT_LISTED = {"Container": "deprecated", "DataParallel": "of devices"}


def test_modules_optimizers_and_schedules_of_torch_are_listed() -> None:
    for home, kind in (
        (nn, nn.Module),
        (torch.optim, torch.optim.Optimizer),
        (torch.optim.lr_scheduler, torch.optim.lr_scheduler.LRScheduler),
    ):
        for name, cls in vars(home).items():
            if inspect.isclass(cls) and issubclass(cls, kind) and name not in {*NOT_LISTED, kind.__name__}:
                if name.startswith("_"):
                    continue
                assert f"{cls.__module__}:{cls.__qualname__}" in LISTED, name


def test_metrics_of_torchmetrics_are_listed() -> None:
    fetching = {"text", "audio", "image", "multimodal", "video", "wrappers", "detection"}
    for name in torchmetrics.__all__:
        cls = getattr(torchmetrics, name, None)
        if inspect.isclass(cls) and issubclass(cls, torchmetrics.Metric):
            path = f"{cls.__module__}:{cls.__qualname__}"
            if cls.__module__.split(".")[1] not in fetching and name not in ("Metric", "CompositionalMetric"):
                assert path in LISTED, path


def test_what_sparkdl_exports_is_listed() -> None:
    for package in (sparkdl.nn, sparkdl.optim, sparkdl.metrics):
        for name in package.__all__:
            value = getattr(package, name)
            kinds = (nn.Module, torch.optim.Optimizer)
            if isinstance(value, type) and issubclass(value, kinds):
                assert f"{value.__module__}:{value.__qualname__}" in LISTED, name


def test_whatever_is_listed_can_be_written_and_read() -> None:
    for path, target in resolved().items():
        if path == "torch.optim._adafactor:Adafactor" or path == "torch.optim._muon:Muon":
            continue  # where older versions have them
        assert decode(encode(target)) is target, path
