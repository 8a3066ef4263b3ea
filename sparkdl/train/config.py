"""The options of a training run, checked when they are given."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkdl.exceptions import ConfigError
from sparkdl.train.triggers import MaxEpoch, Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Options of :class:`sparkdl.Trainer`; see there.

    Raises:
        ConfigError: naming the option, what was found and what was expected.
    """

    batch_size: int = 32
    seed: int = 0
    end_when: Trigger = field(default_factory=lambda: MaxEpoch(1))
    shuffle: bool = True
    micro_batch_size: int | None = None
    num_slices: int | None = None
    progress: bool = True
    name: str | None = None

    def __post_init__(self) -> None:
        _check_int("batch_size", self.batch_size, 1, "the number of rows of one iteration over all executors")
        _check_int("seed", self.seed, 0, "any non-negative integer")
        if self.micro_batch_size is not None:
            _check_int("micro_batch_size", self.micro_batch_size, 1, "rows per forward pass, or None")
        if self.num_slices is not None:
            _check_int(
                "num_slices", self.num_slices, 1, "parameter-sync tasks, or None for one per partition"
            )
        if not isinstance(self.end_when, Trigger):
            raise ConfigError(f"end_when={self.end_when!r}: expected a trigger such as MaxEpoch(5)")


def _check_int(name: str, value: object, least: int, meaning: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r}: expected an integer of at least {least} ({meaning})")
