"""The hooks of a run: the user's, those of options, and those of every run of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sparkdl.exceptions import ConfigError, sequence_option
from sparkdl.train.hooks.base import Hook
from sparkdl.train.hooks.progress import Progress
from sparkdl.train.hooks.timeline import Timeline
from sparkdl.train.options.config import TrainConfig

MakeHooks = Callable[[Sequence[Hook]], Sequence[Hook]]
"""Returns hooks to add to those that a run has already."""

_of_every_run: list[MakeHooks] = []


def add_to_every_run(make: MakeHooks) -> None:
    """Give hooks to every run that begins from now on in this process."""
    if make not in _of_every_run:
        _of_every_run.append(make)


def remove_from_every_run(make: MakeHooks) -> None:
    """Undo :func:`add_to_every_run`."""
    if make in _of_every_run:
        _of_every_run.remove(make)


@contextmanager
def none_of_every_run() -> Iterator[None]:
    """Give runs of this process only the hooks of their options while the block runs: it is a rehearsal."""
    before = list(_of_every_run)
    _of_every_run.clear()
    try:
        yield
    finally:
        _of_every_run[:] = before


def hooks_of(config: TrainConfig, name: str) -> list[Hook]:
    """Return the hooks of a run, in the order in which they are called."""
    hooks: list[Hook] = [Progress(name)] if config.progress else []
    hooks += config.hooks
    if config.timeline is not None:
        hooks.append(Timeline(config.timeline))
    for make in _of_every_run:
        hooks += make(hooks)
    return hooks


def check_hooks(hooks: object) -> None:
    """Check the option ``hooks``."""
    for hook in sequence_option("hooks", hooks, "hooks such as [EarlyStopping(3)]"):
        if not isinstance(hook, Hook):
            raise ConfigError(f"hooks: {hook!r:.100} is not a sparkdl.train.Hook")
        sequence_option("unfreezes", hook.unfreezes, f"patterns, of {type(hook).__name__}")
