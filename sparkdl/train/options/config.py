"""The options of a training run and their defaults, checked when they are given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sparkdl.allreduce.choose import Exchange, TransportName
from sparkdl.compute.spec import Combine
from sparkdl.exceptions import ConfigError, is_integer, sequence_option
from sparkdl.nn.numerics import Numerics
from sparkdl.optim.clip import Clip
from sparkdl.optim.groups import ParamGroup
from sparkdl.optim.staleness import Staleness
from sparkdl.train.options.averaging import Averaging
from sparkdl.train.options.elastic import Elastic
from sparkdl.train.options.local_steps import LocalSteps
from sparkdl.train.options.schedule import Schedule
from sparkdl.train.options.stragglers import DropStragglers
from sparkdl.train.options.triggers import EveryEpoch, MaxEpoch, Trigger
from sparkdl.wire.codec import Cast, Codec, Short, cast_of, codec_of


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
    row_memory: int | None = None
    num_shards: int | None = None
    exchange: Exchange = "auto"
    transport: TransportName = "auto"
    iterations_per_job: int | None = None
    groups: Sequence[ParamGroup] = ()
    schedule: Schedule | None = None
    clip: Clip | None = None
    combine: Combine = "mean"
    gradient_codec: Codec | Short = "fp32"
    weights_codec: Cast = "fp32"
    local_steps: LocalSteps | int | None = None
    averaging: Averaging | None = None
    metrics: Any = None
    validate_when: Trigger = field(default_factory=EveryEpoch)
    validation_batch_size: int | None = None
    monitor: str | None = None
    monitor_mode: Literal["max", "min"] | None = None
    min_delta: float = 0.0
    hooks: Sequence[Any] = ()  # of Hook, which knows runs, which know these options: the Trainer checks it
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool | Mapping[str, Any] = False
    channels_last: bool = False
    checkpoint_activations: Sequence[str] = ()
    timeline: str | None = None
    commit_every: int | None = None
    max_failures: int = 5
    failure_window: float = 600.0
    elastic: Elastic | Literal["plan"] | None = None
    drop_stragglers: DropStragglers | None = None
    staleness: Staleness | None = None
    progress: bool = True
    name: str | None = None

    def __post_init__(self) -> None:
        _check_int("batch_size", self.batch_size, 1, "the number of rows of one iteration over all executors")
        for name, flag in (("shuffle", self.shuffle), ("progress", self.progress)):
            if not isinstance(flag, bool):
                raise ConfigError(f"{name}={flag!r}: expected True or False")
        _check_int("seed", self.seed, 0, "any non-negative integer")
        if self.micro_batch_size is not None:
            _check_int("micro_batch_size", self.micro_batch_size, 1, "rows per forward pass, or None")
        if self.row_memory is not None:
            _check_int("row_memory", self.row_memory, 1, "bytes of each process, or None for no bound")
        if self.num_shards is not None:
            _check_int(
                "num_shards", self.num_shards, 1, "parameter-sync tasks, or None for one per partition"
            )
        self._check_exchange()
        if self.commit_every is not None:
            _check_int("commit_every", self.commit_every, 0, "iterations between two commits, 0 for none")
        _check_int("max_failures", self.max_failures, 0, "iterations that may fail within failure_window")
        if not isinstance(self.failure_window, int | float) or not self.failure_window > 0:
            raise ConfigError(
                f"failure_window={self.failure_window!r}: expected a positive number of seconds"
            )
        rules: tuple[tuple[str, Any, str], ...] = (
            ("drop_stragglers", DropStragglers, "DropStragglers(...) or None"),
            ("staleness", Staleness, "Staleness(...) or None"),
            ("clip", Clip, "ClipByValue(...) or ClipByNorm(...)"),
            ("averaging", Averaging, "EMA(...) or SWA(...)"),
        )
        for name, kind, expected in rules:
            found = getattr(self, name)
            if not isinstance(found, kind | None):
                raise ConfigError(f"{name}={found!r}: expected {expected}")
        if self.staleness is not None:
            self._check_staleness()
        Elastic.of(self.elastic)
        if self.validation_batch_size is not None:
            _check_int("validation_batch_size", self.validation_batch_size, 1, "rows per forward pass")
        for name, value in (("end_when", self.end_when), ("validate_when", self.validate_when)):
            if not isinstance(value, Trigger):
                raise ConfigError(f"{name}={value!r}: expected a trigger such as MaxEpoch(5)")
        if self.combine not in ("mean", "adasum"):
            raise ConfigError(f"combine={self.combine!r}: expected 'mean' or 'adasum'")
        codec_of(self.gradient_codec)
        cast_of(self.weights_codec)
        self._check_local_steps()
        if self.monitor_mode not in (None, "max", "min"):
            raise ConfigError(f"monitor_mode={self.monitor_mode!r}: expected 'max', 'min' or None")
        if not isinstance(self.min_delta, int | float) or not 0 <= self.min_delta < math.inf:
            raise ConfigError(f"min_delta={self.min_delta!r}: expected a number of at least 0")
        for group in sequence_option(
            "groups", self.groups, "groups such as [ParamGroup('*.bias', weight_decay=0)]"
        ):
            if not isinstance(group, ParamGroup):
                raise ConfigError(f"groups: {group!r:.100} is not a sparkdl.optim.ParamGroup")
        self.numerics()  # checks its options

    def _check_exchange(self) -> None:
        for name, choices in (("exchange", Exchange), ("transport", TransportName)):
            if getattr(self, name) not in get_args(choices):
                known = ", ".join(map(repr, get_args(choices)))
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected one of {known}")
        if self.iterations_per_job is not None:
            _check_int("iterations_per_job", self.iterations_per_job, 1, "iterations of one job, or None")
        if self.exchange in ("replicated", "sharded"):
            for name in ("num_shards", "drop_stragglers"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"{name} needs exchange='driver'; found exchange={self.exchange!r}")
        several = self.iterations_per_job is not None and self.iterations_per_job > 1
        for name in ("exchange", "num_shards", "drop_stragglers"):
            found = getattr(self, name)
            if several and (found == "driver" if name == "exchange" else found is not None):
                raise ConfigError(
                    f"iterations_per_job={self.iterations_per_job} needs exchange='replicated' or 'sharded'; "
                    f"found {name}={found!r}"
                )

        if self.weights_codec != "fp32":
            taken = {"exchange": self.exchange not in ("auto", "sharded")} | {
                name: getattr(self, name) is not None for name in ("num_shards", "drop_stragglers")
            }
            for name in (name for name, other in taken.items() if other):
                raise ConfigError(
                    f"weights_codec={self.weights_codec!r} needs exchange='sharded'; found "
                    f"{name}={getattr(self, name)!r}"
                )

    def _check_local_steps(self) -> None:
        if self.local_steps is None:
            return
        if not isinstance(self.local_steps, LocalSteps):
            _check_int(
                "local_steps", self.local_steps, 1, "steps of each partition, LocalSteps(...), or None"
            )
        if self.drop_stragglers is not None:
            raise ConfigError("drop_stragglers cannot be combined with local_steps: leave out one of them")

    def _check_staleness(self) -> None:
        taken = {
            "combine='adasum'": self.combine != "mean",
            f"clip={type(self.clip).__name__}(...)": self.clip is not None and self.clip.reductions > 0,
            "local_steps": self.local_steps is not None,
            "drop_stragglers": self.drop_stragglers is not None,
        }
        for option in (option for option, found in taken.items() if found):
            raise ConfigError(f"staleness cannot be combined with {option}: leave out one of them")

    @property
    def local(self) -> LocalSteps | None:
        """The option ``local_steps``, if partitions step by themselves."""
        return LocalSteps(self.local_steps) if isinstance(self.local_steps, int) else self.local_steps

    def rows_per_iteration(self, batch_size: int, epoch: int) -> int:
        """Return the rows of one iteration over all executors in an epoch, counted from 0."""
        return batch_size * (self.local.at(epoch) if self.local is not None else 1)

    def numerics(self) -> Numerics:
        """Return the options that change how a worker computes."""
        return Numerics(
            precision=self.precision,
            compile=self.compile,
            channels_last=self.channels_last,
            checkpoint_activations=self.checkpoint_activations,
        )


def _check_int(name: str, value: object, least: int, meaning: str) -> None:
    if not is_integer(value, least):
        raise ConfigError(f"{name}={value!r}: expected an integer of at least {least} ({meaning})")
