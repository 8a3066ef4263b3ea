"""The source of a module: an import path and arguments, as JSON can hold them.

A description that was read from a file names only what is listed (:mod:`sparkdl.saved.allowlist`) and
what the caller trusts (:class:`sparkdl.saved.trust.Trust`). It is judged while it is read: a
:class:`ModuleSource` that exists may be built. A description that the caller makes may name any class of a
module, optimizer or schedule, and functions whose *return annotation* is one of these, or a tensor::

    def make(width: int) -> nn.Module: ...

Values are written as :mod:`sparkdl.saved.values` says, and code as::

    {"$import": "torch.nn.modules.activation:ReLU"}      a class or function, not called
    {"$partial": "torch.optim.adam:Adam", "positional": [], "arguments": {"lr": 0.001}}
    {"$build": "torch.nn.modules.loss:MSELoss", "arguments": {}}
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.hf import rebuilt
from sparkdl.saved import compare, values
from sparkdl.saved.allowlist import LISTED
from sparkdl.saved.importing import find, path_of
from sparkdl.saved.moved import current
from sparkdl.saved.trust import LISTED_ONLY, Trust

_INSTEAD = "pass a class or function and its arguments instead of an instance"


@dataclasses.dataclass(frozen=True)
class ModuleSource:
    """Import path and arguments from which a module is built again."""

    path: str  # ``"package.module:Class"``, or a function that returns a module
    # its keyword arguments; what :func:`encode` takes
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls, factory: Callable[..., nn.Module], arguments: Mapping[str, Any] | None = None
    ) -> ModuleSource:
        """Describe a call of a class or function.

        Arguments of a partial are kept where ``arguments`` do not replace them. Modules among them are kept
        as descriptions, so that each :meth:`build` makes new ones. Raises ConfigError if ``factory`` cannot
        be imported again, or an argument cannot be written.
        """
        merged: dict[str, Any] = {}
        while isinstance(factory, partial):
            merged = {**_by_name(factory), **merged}
            factory = factory.func
        merged.update(arguments or {})
        source = cls(path_of(factory), _changed(merged, nn.Module, cls.infer))
        encode(source.arguments, f"arguments of {source.path}")
        return source

    @classmethod
    def of_instance(cls, module: nn.Module) -> ModuleSource | None:
        """Describe an instance, or return ``None`` where :meth:`infer` raises."""
        try:
            return cls.infer(module)
        except ConfigError:
            return None

    @classmethod
    def infer(cls, module: nn.Module, *, exact: bool = False) -> ModuleSource:
        """Describe an instance by its class and the attributes named like constructor arguments.

        A second module is built from the description. It must have the same submodules, parameters, buffers
        and other attributes; values of parameters and buffers are not compared. With ``exact``, values of
        parameters and buffers must be the same too. Sequences and lists of such modules may be nested. Raises
        ConfigError saying why the description does not give the same module.
        """
        source = _describe(module)
        _check_same(module, source, exact)
        return source

    def build(self) -> nn.Module:
        """Import the class or function and call it.

        Raises ConfigError if it cannot be imported, or is neither a module's class nor a function annotated
        to return one; ModelError if the call fails, or returns no module.
        """
        built = _call(self.path, self.arguments)
        if not isinstance(built, nn.Module):
            raise ModelError(f"{self.path} returned a {type(built).__name__}, expected a torch.nn.Module")
        return built

    def check(self, module: nn.Module) -> None:
        """Check that :meth:`build` gives a module with the parameters and buffers of this one."""
        if compare.layout_of(module) != compare.layout_of(self._twin(values=False)):
            raise ConfigError(
                f"{self.path} builds other parameters or buffers from its arguments: {_INSTEAD}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, for :meth:`from_json`."""
        return {"path": self.path, "arguments": encode(self.arguments, f"arguments of {self.path}")}

    def _twin(self, values: bool) -> nn.Module:
        """Build the module for comparison, where its values do not matter without memory for them."""
        for device in ("cpu",) if values else ("meta", "cpu"):
            try:
                with torch.random.fork_rng(devices=[]), torch.device(device):
                    return self.build()
            except ModelError as error:  # some constructors look at values
                if device == "cpu":
                    raise ConfigError(f"cannot be built again: {error}") from error
        raise AssertionError

    @classmethod
    def from_json(cls, value: Mapping[str, Any], trust: Trust = LISTED_ONLY) -> ModuleSource:
        """Read a description, and import the code that it names."""
        path, arguments = value.get("path"), value.get("arguments")
        if not isinstance(path, str) or not isinstance(arguments, dict):
            raise ConfigError(f"expected a module's path and arguments, got {value!r:.200}")
        find(path, trust)
        decoded = _Reading(trust, build=False).value(arguments)
        if not isinstance(decoded, dict) or any(not isinstance(name, str) for name in decoded):
            raise ConfigError(f"arguments of {path}: expected names and values, got {arguments!r:.200}")
        return cls(current(path), decoded)


def sequential(**layers: nn.Module) -> nn.Sequential:
    """Build a ``Sequential`` from layers by name; part of the format of saved models."""
    result = nn.Sequential()
    for name, layer in layers.items():
        result.add_module(name, layer)
    return result


def encode(value: Any, what: str = "value") -> Any:
    """Return a value as JSON values; ConfigError names the entry of ``what`` that cannot be written.

    It may be numbers, strings, ``None``, lists, tuples, dicts, dtypes, small tensors, importable classes and
    functions, partials of these, modules without trained values, and sparkdl's options.
    """
    return values.write(value, what, _encode_code)


def decode(value: Any, trust: Trust = LISTED_ONLY) -> Any:
    """Return what :func:`encode` made this of; ConfigError if it cannot have, or if a name is not trusted."""
    return _Reading(trust, build=True).value(value)


class _Reading:
    """Reads values that name code."""

    def __init__(self, trust: Trust, build: bool) -> None:
        self._trust = trust
        self._build = build
        self._readers: dict[str, values.Reader] = {
            "$import": lambda value: find(value["$import"], trust),
            "$partial": self._partial,
            "$build": self._built,
        }

    def value(self, value: Any) -> Any:
        """Read a value."""
        return values.read(value, self._readers)

    def _partial(self, value: dict[str, Any]) -> partial[Any]:
        target = find(value["$partial"], self._trust)
        return partial(target, *self.value(value["positional"]), **self.value(value["arguments"]))

    def _built(self, value: dict[str, Any]) -> Any:
        target = find(value["$build"], self._trust)
        arguments = self.value(value["arguments"])
        if self._build or (isinstance(target, type) and _is_option(target)):
            return _call(value["$build"], arguments)
        return ModuleSource(current(value["$build"]), arguments)


def _encode_code(value: Any, what: str) -> Any:
    if isinstance(value, ModuleSource):
        return {"$build": value.path, "arguments": encode(value.arguments, what)}
    if isinstance(value, nn.Module):
        return _encode_code(ModuleSource.infer(value, exact=True), what)
    if isinstance(value, partial):
        return {
            "$partial": path_of(value.func),
            "positional": [encode(item, f"{what}.args[{i}]") for i, item in enumerate(value.args)],
            "arguments": encode(value.keywords, what),
        }
    if _is_option(type(value)):
        fields = [f.name for f in dataclasses.fields(value) if f.init]
        arguments = {name: getattr(value, name) for name in fields}
        return {"$build": path_of(type(value)), "arguments": encode(arguments, what)}
    if isinstance(value, type) or inspect.isroutine(value):
        return {"$import": path_of(value)}
    raise ConfigError(
        f"{value!r:.100} is a {type(value).__name__}, expected numbers, strings, lists, dicts, or classes "
        "and functions that can be imported"
    )


def _call(path: str, arguments: Mapping[str, Any]) -> Any:
    target = find(path)
    built = _changed(arguments, ModuleSource, ModuleSource.build)
    try:
        return target(**built)
    except Exception as error:
        listed = ", ".join(f"{name}={value!r:.40}" for name, value in arguments.items())
        raise ModelError(f"{path}({listed}) failed: {error!r}") from error


def _changed(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return a tree of lists and dicts in which objects of a kind are changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _changed(item, kind, change) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_changed(item, kind, change) for item in value)
    return value


def _is_option(cls: type) -> bool:
    """Tell whether a class is one of sparkdl's option classes, such as ``ClipByNorm``."""
    return dataclasses.is_dataclass(cls) and f"{cls.__module__}:{cls.__qualname__}" in LISTED


def _by_name(factory: partial[Any]) -> dict[str, Any]:
    """Return a partial's arguments by name, positional ones too."""
    if not factory.args:
        return dict(factory.keywords)
    try:
        bound = inspect.signature(factory.func).bind_partial(*factory.args, **factory.keywords)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{factory!r:.100}: {error}; pass arguments by name") from error
    kinds = {name: p.kind for name, p in bound.signature.parameters.items()}
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if kinds[name] in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            raise ConfigError(f"{factory!r:.100}: argument {name} is positional only; pass arguments by name")
        named.update(value if kinds[name] is inspect.Parameter.VAR_KEYWORD else {name: value})
    return named


def _describe(module: nn.Module) -> ModuleSource:
    """Read constructor arguments off an instance; whether they are right is checked afterwards."""
    known = rebuilt.describe(module)
    if known is not None:  # a model of Hugging Face has a configuration
        return _of_description(known)
    cls = type(module)
    if cls is nn.Sequential:
        layers = {name: _describe(child) for name, child in module.named_children()}
        if len(layers) != len(module._modules):
            raise ConfigError("a layer is in a Sequential twice")
        return ModuleSource(path_of(sequential), dict(layers))
    if cls in (nn.ModuleList, nn.ModuleDict):
        children = {name: _describe(child) for name, child in module.named_children()}
        held: Any = children if cls is nn.ModuleDict else list(children.values())
        return ModuleSource(path_of(cls), {"modules": held})
    source = ModuleSource(path_of(cls), {})
    for name, parameter in _parameters(cls):
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        required = parameter.default is inspect.Parameter.empty
        try:
            value = _argument(getattr(module, name), parameter.default)
        except AttributeError:
            if required:
                raise ConfigError(
                    f"{cls.__name__} has no attribute {name!r} to read its constructor's argument from: "
                    f"keep it there, self.{name} = {name} in the constructor. An estimator, and "
                    "from_module(), take a class or function and its arguments in place of an instance, too"
                ) from None
            continue
        try:
            encode(value, f"{cls.__name__}.{name}")
        except ConfigError:
            if required:
                raise
            continue
        if required or value is not parameter.default:
            source.arguments[name] = value
    return source


def _of_description(found: rebuilt.Description) -> ModuleSource:
    arguments = {
        name: _of_description(value) if isinstance(value, rebuilt.Description) else value
        for name, value in found.arguments.items()
    }
    return ModuleSource(path_of(found.factory), arguments)


def _parameters(cls: type[nn.Module]) -> Iterator[tuple[str, inspect.Parameter]]:
    """Iterate over a constructor's parameters."""
    if not issubclass(cls, nn.RNNBase) or cls.__module__ != nn.RNNBase.__module__:
        yield from inspect.signature(cls).parameters.items()
        return
    # torch's recurrent layers take (*args, **kwargs) and hand them to RNNBase, after the mode
    yield from (item for item in inspect.signature(nn.RNNBase).parameters.items() if item[0] != "mode")
    if cls is nn.RNN:
        name = "nonlinearity"
        yield name, inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default="tanh")


def _argument(value: Any, default: Any) -> Any:
    """Turn an attribute into the argument that made it: ``bias`` holds a parameter for ``True``."""
    if isinstance(default, bool) and not isinstance(value, bool):
        return value is not None
    return _describe(value) if isinstance(value, nn.Module) else value


def _check_same(module: nn.Module, source: ModuleSource, exact: bool) -> None:
    twin = source._twin(exact or any(compare.unsaved_tensors(part) for part in module.modules()))
    problem = compare.difference(module, twin)
    if problem is None and exact and not compare.same(module.state_dict(), twin.state_dict()):
        problem = "values of parameters or buffers are not those it is built with"
    if problem is not None:
        raise ConfigError(f"{source.path}: {problem}: {_INSTEAD}")
