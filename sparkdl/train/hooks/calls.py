"""Calling the hooks of a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl.exceptions import ConfigError
from sparkdl.train.checkpoint.resume import frozen_by
from sparkdl.train.hooks.base import Hook
from sparkdl.train.hooks.callbacks import Freeze, Unfreeze
from sparkdl.train.leaving import note
from sparkdl.train.run import Run
from sparkdl.train.state import TrainState

_log = logging.getLogger("sparkdl")


class HookCalls:
    """The hooks of a run, together."""

    def __init__(self, hooks: Sequence[Hook], run: Run) -> None:
        self._hooks = hooks
        self._run = run
        self._trained = {name for name, p in run.module.named_parameters() if p.requires_grad}

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of all hooks; the first exception ends it."""
        for hook in self._hooks:
            getattr(hook, method)(self._run, *arguments)
        if self._hooks and method == "on_epoch_begin":
            self._check_module()

    def _check_module(self) -> None:
        """Check that nobody has frozen parameters of the caller's module, of which the run trains a copy."""
        known = {spec.name for spec in self._run.layout.params}
        for name, p in self._run.module.named_parameters():
            # Parameters of the layout that are frozen are not for a moment while the module is copied.
            frozen = name in known and name in self._trained and not p.requires_grad
            unfrozen = name not in known and p.requires_grad
            if frozen or unfrozen:
                raise ConfigError(
                    f"requires_grad of {name!r} became {p.requires_grad} while the run goes on, which trains "
                    "a copy of the module: it has no effect. Give hooks=[Freeze(pattern), Unfreeze(pattern, "
                    "at_epoch=...)] of sparkdl.train, or call run.freeze(pattern) and run.unfreeze(pattern)",
                )

    def tell(self, method: str, *arguments: Any) -> list[Exception]:
        """Call a method of all hooks at the end of the run; return what failed."""
        errors: list[Exception] = []
        for hook in self._hooks:
            try:
                getattr(hook, method)(self._run, *arguments)
            except Exception as error:
                errors.append(error)
                failure = f"{type(hook).__name__}.{method} failed: {error!r}"
                if self._run.error is not None:
                    note(self._run.error, failure)
                else:
                    _log.warning("%s", failure)
        return errors

    def want_gradient(self, previous: TrainState, state: TrainState) -> bool:
        """Return whether a hook wants the gradient of the iteration after a state."""
        return any(h.gradients is not None and h.gradients(previous, state) for h in self._hooks)

    def look(self, previous: TrainState, state: TrainState) -> bool:
        """Return whether a hook will want the weights, or change anything, at a state."""
        return any(hook.looks(previous, state) for hook in self._hooks)

    def state_dicts(self) -> dict[str, dict[str, Any]]:
        """Return what each hook needs to go on in another run."""
        return {name: hook.state_dict() for name, hook in self._by_name().items()}

    def load_state_dicts(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Let hooks go on from where those of another run were; what others had frozen there is trained."""
        named, run = self._by_name(), self._run
        gone, there = states.keys() - named.keys(), states.keys() & named.keys()
        run.frozen -= frozen_by({name: states[name] for name in gone}) - frozen_by(
            {name: states[name] for name in there}
        )
        for name, hook in named.items():
            if name in states:
                hook.load_state_dict(states[name])
            elif isinstance(hook, Freeze):
                run.frozen |= hook.own

    def _by_name(self) -> dict[str, Hook]:
        """Name hooks by their class and a number, ``EarlyStopping.0``; of parameters by arguments, too."""
        named: dict[str, Hook] = {}
        for hook in self._hooks:
            kind = repr(hook) if isinstance(hook, Freeze | Unfreeze) else type(hook).__name__
            named[f"{kind}.{sum(name.rpartition('.')[0] == kind for name in named)}"] = hook
        return named
