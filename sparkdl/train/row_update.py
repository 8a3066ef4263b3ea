"""A chain's task where gradients are row-sparse: every iteration of a group as one stage of one Spark job.

As in :class:`~sparkdl.train.advance.Advance`, every executor makes all weights itself from all
gradients; but of tables whose optimizer is lazy it updates the rows that were touched, and nothing of the
others is read, written or sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl import frame
from sparkdl._spark import key
from sparkdl.allreduce import slices, update
from sparkdl.allreduce import weights as published
from sparkdl.allreduce.weights import WeightsRef
from sparkdl.frame import Array, Frame, Packed, Parts
from sparkdl.optim.packed import lazy_tables, take_state
from sparkdl.rows import Rows, union
from sparkdl.train import live, stage
from sparkdl.train.advance import UpdateStage
from sparkdl.train.kept import master_frame
from sparkdl.train.live import Change, LiveModel
from sparkdl.train.worker import FitSpec, Worker


@dataclass(frozen=True, slots=True)
class UpdateRows(UpdateStage[LiveModel]):
    """The task of a stage that updates the rows that were touched.

    Attributes:
        changes: how many changes executors keep as files; none at all if one process runs all tasks of one.
    """

    changes: int

    def _model(self, worker: Worker, partition: int, arrived: list[Frame]) -> LiveModel:
        """Return the model after the iterations so far."""
        if self.turn is None:
            return live.bring(worker, self.start, self.start.version)
        stage.check(arrived)
        before, version = self.start.version.after(self.done), self.start.version.after(self.done + 1)
        if worker.live is not None and worker.live.version == version:
            return live.bring(worker, self.start, version)
        model = live.bring(worker, self.start, before)
        change = live.read_change(worker.spec, version)  # by another task on this executor
        if change is None:
            change = self._update(worker.spec, model, stage.resolve(arrived, before))
            if self.changes:
                live.write_change(version, change)
            live.delete_outdated(self.start.version, version, self.changes)
        model.apply(change)
        return model

    def _update(self, spec: FitSpec, model: LiveModel, messages: list[Frame]) -> Change:
        """Make the next version of what the gradients concern."""
        turn = self.turn
        assert turn is not None
        number = self.start.version.iteration + self.done
        shards = [message for message in messages if message.meta["kind"] == "shard"]
        reports = [message for message in messages if message.meta["kind"] != "shard"]
        # Whoever wants the whole gradient wants all rows of it.
        tables = [] if turn.gradient else lazy_tables(model.optimizer, spec.tables, turn.hyper)
        rows = _covered(spec, shards, tables)
        weights = {**model.arrays, "params": rows.take(model.params)}
        layout = rows.packed
        task = update.Update(
            layout,
            0,
            layout.numel,
            spec.rule,
            WeightsRef(number, published.pack(number, **weights)),
            spec.combine,
            False,
            turn,
        )
        packed = [update.renumber(message, rows) for message in shards]
        frames: list[Packed | Frame] = [take_state(model.optimizer, rows), *packed, *reports]
        found: dict[str, Frame] = {}
        for _, parts in update.update_slice(task, frames):
            message = frame.unpack(parts)
            stage.check_update(message.meta, number)
            found[message.meta["kind"]] = message
        told: dict[str, Any] = {
            kind: dict(found[kind].meta) for kind in ("slice", "reports") if kind in found
        }
        arrays: dict[str, Array] = {**weights, **found["slice"].arrays}
        if "reports" in found:
            arrays |= found["reports"].arrays
        return Change(rows, arrays, found["state"], told)

    def _finish(self, partition: int, model: LiveModel, spec: FitSpec) -> Iterator[bytes | Parts]:
        """Yield, keyed, the slice that stays with the partition; the first one tells the driver the rest."""
        if self.changes:
            live.write_base(model)
        if partition == 0:
            first, last = self.start.version.iteration + 1, self.start.version.iteration + self.done + 1
            told = [model.reports[number] for number in range(first, last + 1)]
            trail = [{"slices": [one["slice"]], "reports": one["reports"]} for one in told]
            arrays = {"buffers": model.buffers, "counters": model.counters}
            if self.turn is not None and self.turn.gradient:
                arrays["gradient"] = model.gradient
            yield key(update.RESULT)
            yield frame.pack({"kind": "trail", "trail": trail}, arrays)
        start, stop = slices.bounds(spec.layout.numel, self.partitions)[partition]
        for parts in (master_frame(model.params[start:stop]), model.optimizer.state_frame_of(start, stop)):
            yield key(update.STATE)
            yield parts


def _covered(spec: FitSpec, shards: list[Frame], tables: list[int]) -> Rows:
    """Return the elements that the gradients concern: of some tables, the rows that any source has touched.

    At least one of each, so that no parameter is empty.
    """
    touched = union(spec.layout, [Rows.read(spec.layout, message.arrays) for message in shards])
    first = np.zeros(1, np.int64)
    covered = {
        index: rows if len(rows) else first for index, rows in touched.tables.items() if index in tables
    }
    return Rows(spec.layout, covered)
