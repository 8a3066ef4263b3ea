"""Everything a run needs to go on elsewhere, as arrays and plain values.

The optimizer's state stays with the slices between iterations. For a checkpoint it is copied to the
driver once, slice by slice, and written with the weights; a run that resumes gives it back to slices,
to the same ones bit for bit, or cut anew if there is another number of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sparkdl import frame
from sparkdl.allreduce import slices
from sparkdl.exceptions import ConfigError
from sparkdl.frame import Array
from sparkdl.layout import ParamLayout
from sparkdl.train.history import History
from sparkdl.train.kept import cut_kept
from sparkdl.train.run import Kept, Snapshot
from sparkdl.train.state import TrainState


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """A run between two iterations.

    Attributes:
        state: where it is.
        snapshot: weights and buffers.
        kept: per slice, the frames that stay with it: optimizer state, averaged weights.
        average_buffers: averaged buffers, if weights are averaged.
        averaged: how many iterations have entered the average.
        history: rows and validations so far.
        scores: latest value of each metric.
        setting: what must be the same to go on: see :func:`setting_of`.
        steps: iterations of the current epoch.
        batch_size: rows of one iteration now.
        learning_rate_scale: factor of the learning rate.
        frozen: names of the parameters that are frozen.
        first: iteration of the epoch from which on ``left`` counts.
        left: positions in the source of the rows that are left of the epoch from there on, if its rows
            have moved to other partitions since it began.
        hooks: state of each hook, by its class and a number.
        unfinished: state before the last iteration if an error came before its validation and the end of
            its epoch were done.
    """

    state: TrainState
    snapshot: Snapshot
    kept: Kept
    average_buffers: Array | None
    averaged: int
    history: History
    scores: Mapping[str, float]
    setting: Mapping[str, Any]
    steps: int
    batch_size: int
    learning_rate_scale: float = 1.0
    frozen: frozenset[str] = frozenset()
    first: int = 0
    left: Array | None = None
    hooks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unfinished: TrainState | None = None

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return JSON-compatible values and named arrays, without ``kept``.

        Nothing that the run goes on to change is referenced.
        """
        arrays: dict[str, Array] = {
            "params": self.snapshot.params,
            "buffers": self.snapshot.buffers,
            "counters": self.snapshot.counters,
        }
        if self.average_buffers is not None:
            arrays["average_buffers"] = self.average_buffers
        if self.left is not None:
            arrays["left"] = self.left
        hooks: dict[str, dict[str, Any]] = {}
        for hook, values in self.hooks.items():
            hooks[hook] = {name: v for name, v in values.items() if not isinstance(v, np.ndarray)}
            arrays |= {f"hook.{hook}.{n}": v for n, v in values.items() if isinstance(v, np.ndarray)}
        history = self.history.to_arrays()
        arrays |= {f"history.{name}": column for name, column in history.items()}
        meta = {
            "state": asdict(self.state),
            "averaged": self.averaged,
            "scores": dict(self.scores),
            "validations": [dict(row) for row in self.history.validations],
            "setting": self.setting,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "learning_rate_scale": self.learning_rate_scale,
            "frozen": sorted(self.frozen),
            "first": self.first,
            "hooks": hooks,
            "unfinished": asdict(self.unfinished) if self.unfinished is not None else None,
        }
        return meta, arrays

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, Array], kept: Kept) -> ResumePoint:
        """Read what :meth:`to_arrays` returned."""
        columns = _under("history.", arrays)
        return cls(
            state=TrainState(**meta["state"]),
            snapshot=Snapshot(arrays["params"], arrays["buffers"], arrays["counters"]),
            kept=kept,
            average_buffers=arrays.get("average_buffers"),
            averaged=meta["averaged"],
            history=History.from_arrays(columns, meta["validations"]),
            scores=meta["scores"],
            setting=meta["setting"],
            steps=meta["steps"],
            batch_size=meta["batch_size"],
            learning_rate_scale=meta["learning_rate_scale"],
            frozen=frozenset(meta["frozen"]),
            first=meta["first"],
            left=arrays.get("left"),
            hooks={k: {**values, **_under(f"hook.{k}.", arrays)} for k, values in meta["hooks"].items()},
            unfinished=TrainState(**meta["unfinished"]) if meta.get("unfinished") else None,
        )

    def check(self, setting: Mapping[str, Any]) -> None:
        """Check that a run with a setting can go on from here.

        Raises:
            ConfigError: naming what differs.
        """
        for name, value in setting.items():
            found = self.setting.get(name)
            if found == value or name == "partitions":
                continue
            if name == "layout":
                raise ConfigError(
                    "resume: the checkpoint is of another module: its trainable parameters differ in names, "
                    "shapes or parameter groups. Resume with the module and groups that it was trained with",
                    code="config-resume",
                )
            raise ConfigError(
                f"resume: {name} is {value!r} now and was {found!r} when the checkpoint was written; resume "
                "with the same",
                code="config-resume",
            )

    def kept_for(self, layout: ParamLayout, count: int) -> Kept:
        """Return what stays with each of ``count`` slices; cut anew if there were others."""
        if len(self.kept) in (0, count):
            return self.kept
        messages = [frame.unpack(data) for frames in self.kept for data in frames]
        cut = cut_kept(messages, slices.bounds(layout.numel, count))
        return [[frame.join(parts) for parts in frames] for frames in cut]


def _under(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


def setting_of(
    layout: ParamLayout,
    rows: Sequence[int],
    *,
    batch_size: int,
    local_steps: int | Mapping[int, int] | None = None,
    seed: int,
    shuffle: bool,
) -> dict[str, Any]:
    """Return, JSON-compatible, what must be the same for a run to go on with the same bits."""
    return json.loads(  # type: ignore[no-any-return]
        json.dumps(
            {
                "layout": [[p.name, p.shape, p.group] for p in layout.params],
                "rows": sum(rows),
                "batch_size": batch_size,
                "local_steps": local_steps,
                "seed": seed,
                "shuffle": shuffle,
                "partitions": list(rows),
            }
        )
    )
