"""Attributes of an estimator besides its Params: values that JSON cannot hold, such as module and loss."""

from __future__ import annotations

import copy
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from pyspark.ml.param import Param, Params
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.nn.objective import Loss
from sparkdl.optim.clip import ClipByNorm, ClipByValue
from sparkdl.optim.groups import ParamGroup
from sparkdl.optim.spec import Optimizers
from sparkdl.train.hooks.base import Hook
from sparkdl.train.options.names import OF_ESTIMATORS, meant
from sparkdl.train.options.schedule import Schedule

Factory = Callable[..., nn.Module]

ATTRIBUTES: Mapping[str, Any] = {
    "module": None,
    "loss": None,
    "optimizer": None,
    "schedule": None,
    "metrics": None,
    "hooks": (),
    "groups": (),
    "clip": None,
    "options": None,
}
"""The attributes, with their defaults in a constructor."""

_SHOWN = reprlib.Repr()
_SHOWN.maxother = 60

_EMPTY: Mapping[str, Any] = {"hooks": (), "groups": (), "options": {}}


class HasAttributes(Params):
    """Mixin for the attributes of estimators, and for setting them together with Params."""

    module: nn.Module | Factory | None
    loss: Loss | None
    optimizer: Optimizers | None
    schedule: Schedule | None
    metrics: Any
    hooks: Sequence[Hook]
    groups: Sequence[ParamGroup]
    clip: ClipByValue | ClipByNorm | None
    options: Mapping[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self._take(**ATTRIBUTES)

    def __repr__(self) -> str:
        """Return the estimator with what was set and is not the default."""
        params = {p.name: self.getOrDefault(p) for p in self.params if self.isSet(p)}
        usual = {p.name: self._defaultParamMap[p] for p in self.params if self.hasDefault(p)}
        given = [f"{n}={_SHOWN.repr(v)}" for n, v in params.items() if n not in usual or usual[n] != v]
        for name, default in ATTRIBUTES.items():
            value = getattr(self, name)
            if value is not None and value != _EMPTY.get(name, default):
                given.append(f"{name}={_shown(value)}")
        return f"{type(self).__name__}({', '.join(given)})"

    def _take(self, **values: Any) -> Self:
        """Set Params and attributes by the names that the constructor has."""
        for name, value in values.items():
            if name in ATTRIBUTES:
                setattr(self, name, _EMPTY.get(name) if value is None else value)
            elif self.hasParam(name):
                self._set(**{name: value})
            else:
                known = [*ATTRIBUTES, *(param.name for param in self.params)]
                nearest = meant(name, value, known, OF_ESTIMATORS)
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}{nearest}")
        return self

    def setModule(self, value: nn.Module | Factory | None) -> Self:
        """Set the module, or the factory that makes it of its hyper-parameters."""
        return self._take(module=value)

    def setLoss(self, value: Loss | None) -> Self:
        """Set the loss, ``loss(output, label)``: a scalar mean over the batch, or one value per row."""
        return self._take(loss=value)

    def setOptimizer(self, value: Optimizers | None) -> Self:
        """Set the optimizer: a factory, such as ``partial(torch.optim.SGD, lr=0.1)``."""
        return self._take(optimizer=value)

    def setSchedule(self, value: Schedule | None) -> Self:
        """Set the learning-rate schedule, as of :class:`sparkdl.Trainer`."""
        return self._take(schedule=value)

    def setMetrics(self, value: Any) -> Self:
        """Set the metrics of validations, as of :class:`sparkdl.Trainer`."""
        return self._take(metrics=value)

    def setHooks(self, value: Sequence[Hook]) -> Self:
        """Set the hooks. Fits with param maps work on copies of them."""
        return self._take(hooks=value)

    def setGroups(self, value: Sequence[ParamGroup]) -> Self:
        """Set groups of parameters with hyper-parameters of their own."""
        return self._take(groups=value)

    def setClip(self, value: ClipByValue | ClipByNorm | None) -> Self:
        """Set how gradients are clipped; gradientClipNorm is short for ``ClipByNorm``."""
        return self._take(clip=value)

    def setOptions(self, value: Mapping[str, Any]) -> Self:
        """Set further options of :class:`sparkdl.Trainer`, such as ``{"averaging": EMA(0.999)}``."""
        return self._take(options=value)

    def copy(self, extra: Mapping[Param[Any], Any] | None = None) -> Self:
        """Return a copy with the same uid and some other values.

        The module and the other attributes are shared, for a fit does not change them; but hooks remember
        a run, and fits may run at the same time, so these are copied.

        Raises:
            ConfigError: if a hook cannot be copied.
        """
        for param in extra or {}:
            if isinstance(param, Param) and param.parent == self.uid:
                self.getParam(param.name)  # makes hyper-parameters that another copy has made
        that = super().copy(dict(extra) if extra is not None else None)
        try:
            that.hooks = [copy.deepcopy(hook) for hook in self.hooks]
        except Exception as error:
            raise ConfigError(
                f"hooks: they cannot be copied ({error!r}), which a fit with param maps needs; leave them "
                "out there"
            ) from error
        return that


def _shown(value: Any) -> str:
    """Return a value that may be a module, a class, a function or a partial one in a few words."""
    if isinstance(value, Mapping):  # values may be secret
        return f"{{{', '.join(map(str, value))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, partial):
        given = ", ".join(f"{name}={_SHOWN.repr(each)}" for name, each in value.keywords.items())
        return f"{_shown(value.func)}({given})"
    named = value if hasattr(value, "__name__") else type(value)
    return str(named.__name__)
