"""The replicated plan: every process makes all new weights itself.

An all-gather of gradients, after which all do the same update, in the same order, to the same bits::

    gradient ══ all-gather ══► update everything, next gradient

What travels grows with the number of ranks, so this is for small models, and for large tables of which a
batch touches few rows: of tables whose optimizer is lazy only the rows that any rank has touched are sent
and updated (:mod:`sparkdl.wire.touched_rows`). Nothing else tells the two apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sparkdl.allreduce.messages import (
    Average,
    GroupReport,
    Master,
    Report,
    Shard,
    State,
)
from sparkdl.allreduce.plan import (
    LONGEST_GROUP,
    Directives,
    Inbox,
    Participant,
    Phase,
    Plan,
    PlanTraits,
    Send,
    Stay,
    Step,
    ToAll,
    ToDriver,
    ToOthers,
    ToSelf,
    gradient_shards,
    report_of,
)
from sparkdl.allreduce.shard_states import ShardStates, cut_shard_states, unpacked
from sparkdl.allreduce.update.combine import combine_reports
from sparkdl.allreduce.update.shard import Finished, ShardUpdate, update_shard
from sparkdl.compute import live_model
from sparkdl.compute.forward_backward import ForwardBackward
from sparkdl.compute.live_model import LiveModel, WeightChange
from sparkdl.compute.local_store import encode
from sparkdl.compute.problems import ProblemError
from sparkdl.compute.spec import FitSpec
from sparkdl.compute.start import ModelVersion, Start
from sparkdl.optim.shard.packed import lazy_tables, packed_optimizer
from sparkdl.wire import frame
from sparkdl.wire.frame import Packed
from sparkdl.wire.held import Shared
from sparkdl.wire.layout import ParamLayout
from sparkdl.wire.touched_rows import TouchedRows, union


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated(Plan):
    """The replicated plan; see :class:`sparkdl.allreduce.plan.Plan`."""

    layout: ParamLayout  # of the flat vectors
    shards: int  # number of ranks
    keeps: bool  # whether anything stays with the shards between groups
    returns_weights: bool  # whether the driver gets the weights at the end of each group
    message_bytes: int  # bytes of a rank's gradient, about
    group_seconds: float = 1.0  # how long a group should take
    longest_group: int = LONGEST_GROUP  # how many iterations may be one group
    changes: int = 0  # how many changes executors keep as files; none if one process runs all tasks of one

    @property
    def traits(self) -> PlanTraits:
        """Each executor makes the weights itself, and keeps them after a group."""
        return PlanTraits(
            shards=self.shards,
            message_bytes=self.message_bytes,
            shard_bytes=self.layout.largest_shard(self.shards),
            weights_bytes=0,
            group_seconds=self.group_seconds,
            longest_group=self.longest_group,
            keeps=self.keeps,
            leaves_model=True,
        )

    def seed(self, fetch: Callable[[], ShardStates]) -> list[Packed]:
        """Return the state of all weights, in one piece."""
        (whole,) = cut_shard_states(unpacked(fetch()), self.layout.shards(1))
        return [frame.join(encode(whole))]

    def phases(self, start: Start, steps: Sequence[Step]) -> list[Phase]:
        """Return one phase for each step, and the last update."""
        phases: list[Phase] = []
        directives: Directives | None = None
        for done, step in enumerate(steps, start=-1):
            forward = step.forward(start, tells=len(steps) > 1 or not start.raises)
            phases.append(self._phase(start, done, directives, forward))
            directives = step.directives
        return [*phases, self._phase(start, len(steps) - 1, directives, None)]

    def _phase(
        self, start: Start, done: int, directives: Directives | None, forward: ForwardBackward | None
    ) -> Phase:
        return _UpdateAll(self.changes, self.keeps, self.returns_weights, start, done, directives, forward)


@dataclass(frozen=True, slots=True)
class _UpdateAll:
    """Update all weights, then go on with the next forward and backward pass."""

    changes: int  # see :class:`Replicated`
    keeps: bool  # whether anything stays with the shards after the last phase
    returns_weights: bool  # whether the driver gets the weights then
    start: Start  # the model from which the group starts
    done: int  # steps of the group that are completed before this phase
    directives: Directives | None  # instructions for the step to complete; ``None`` in the first phase
    forward: ForwardBackward | None  # the step to begin; ``None`` in the last phase

    def __call__(self, me: Participant, inbox: Inbox) -> Iterator[Send]:
        """Send gradient and report to all, or weights and state to where they stay."""
        live = self._model(me, inbox)
        if self.forward is None:
            yield from self._finish(me, live)
            return
        me.clock.lap("update")
        contribution = me.contribute(self.forward, lambda: live.loadable)
        live.unsent = contribution.gradient if _stays_here(me) else None
        if not _stays_here(me):
            whole = me.worker.spec.layout.shards(1)
            for shard in gradient_shards(me, self.forward, contribution, whole):
                yield ToOthers(shard)
                yield ToSelf(self._after(0).part(f"gradient-{me.rank}"), [shard], lent=True)
        yield ToAll(report_of(me, contribution))

    def _after(self, steps: int) -> ModelVersion:
        """Return the version that this phase's update makes, or one some steps later."""
        return self.start.after(self.done + 1 + steps)

    def _model(self, me: Participant, inbox: Inbox) -> LiveModel:
        """Return this process's model after the steps so far."""
        worker, version = me.worker, self._after(0)
        if self.directives is None or (worker.live is not None and worker.live.version == version):
            worker.live = live_model.bring(worker, self.start, version)
            return worker.live
        live = worker.live = live_model.bring(worker, self.start, self._after(-1))
        change = live_model.read_change(
            worker.spec, worker.files, version
        )  # by another task on this executor
        if change is None:
            change = self._update(me, live, inbox)
            if self.changes and not me.stays:
                live_model.write_change(worker.files, version, change, live)
            else:  # gradients that were lent are not copied any more
                consumed = self._after(-1).part("gradient-")
                worker.files.forget_all(lambda name: name.startswith(consumed))
            if not me.stays or self.forward is None:
                live_model.delete_outdated(worker.files, self.start, version, self.changes)
        live.apply(change, version)
        return live

    def _update(self, me: Participant, live: LiveModel, inbox: Inbox) -> WeightChange:
        """Make the next version of the elements that the gradients cover."""
        directives, spec = self.directives, me.worker.spec
        assert directives is not None
        arrived = inbox.of(Shard)
        reports = combine_reports(inbox.of(Report), live.buffers, live.counters)
        rows = _covered(spec, arrived, _lazy(spec, live, directives))
        whole = rows.is_whole  # then weights and state are updated in place
        if whole:
            optimizer, weights, shards_of = live.optimizer, live.weights, arrived
        else:
            optimizer = packed_optimizer(live.optimizer, rows)
            weights = torch.from_numpy(rows.take(live.params))
            shards_of = [shard.renumbered(rows) for shard in arrived]
        unsent = live.unsent if _stays_here(me) else None
        if unsent is not None:
            me.worker.replica.lend_gradient()
        version = live.begin_change()
        update = ShardUpdate(
            layout=rows.packed,
            start=0,
            stop=rows.packed.numel,
            rule=spec.rule,
            weights=weights,
            iteration=version.iteration,
            combine=spec.combine,
            averaging=spec.averaging,
            directives=directives,
        )
        try:
            made = update_shard(update, shards_of, optimizer, live.average, unsent=unsent)
        except ProblemError:
            live.give_up_change(version)
            raise
        assert isinstance(made, Finished)  # one shard: its sums are the totals
        facts = {"updates": [made.facts.scalars()], "reports": list(reports.reports)}
        report = json.dumps(facts, separators=(",", ":")).encode() if me.tells else b""
        return WeightChange(
            rows,
            None if whole else made.weights.numpy(),
            reports.buffers.get("buffers", live.buffers),
            reports.buffers.get("counters", live.counters),
            optimizer,
            made.average,
            [*live.reports, report],
            made.gradient,
        )

    def _finish(self, me: Participant, live: LiveModel) -> Iterator[Send]:
        """Keep the rank's shard; the first rank tells the driver how it went."""
        worker, layout = me.worker, me.worker.spec.layout
        if self.changes:
            live_model.write_base(live, worker.files)
        if me.rank == 0:
            steps = [json.loads(line) for line in live.reports]
            params = live.params if self.returns_weights else None
            yield ToDriver(GroupReport(steps, live.buffers, live.counters, params, live.gradient))
        if not self.keeps:
            return
        start, stop = layout.shards(me.ranks)[me.rank]
        if not self.returns_weights:
            yield Stay(Master(live.weights[start:stop].cpu().numpy()))
        yield Stay(State(Shared(frame.unpack(live.optimizer.state_frame_of(start, stop)))))
        if live.average is not None:
            yield Stay(Average(Shared(live.average[start:stop].cpu().numpy())))


def _stays_here(me: Participant) -> bool:
    """Whether a gradient stays where it was computed: no other rank wants it, nor another process."""
    spec = me.worker.spec
    whole = not spec.tables and spec.rule.staleness is None
    plain = spec.gradient_codec == "fp32" and not spec.partition_state
    return me.ranks == 1 and me.stays and whole and plain


def _lazy(spec: FitSpec, live: LiveModel, directives: Directives) -> list[int]:
    """Return the tables of which only touched rows need to be updated.

    None if anything changes or wants all weights: Adasum, an average, pseudo-gradients, a hook that wants
    the whole gradient.
    """
    if directives.gradient or spec.averaging or spec.combine != "mean" or spec.inner is not None:
        return []
    if live.weights.device.type != "cpu":
        return []  # rows are taken out and put back on the host
    staleness = spec.rule.staleness
    late = staleness is not None and not staleness.rows_only
    return lazy_tables(live.optimizer, spec.tables, directives.hyper, late=late)


def _covered(spec: FitSpec, arrived: Sequence[Shard], tables: Sequence[int]) -> TouchedRows:
    """Return the elements that the gradients concern: of some tables, the rows that any source has touched.

    At least one of each, so that no parameter is empty.
    """
    if not tables:
        return TouchedRows(spec.layout, {})
    touched = union(spec.layout, [shard.rows(spec.layout) for shard in arrived])
    first = np.zeros(1, np.int64)
    covered = {
        index: rows if len(rows) else first for index, rows in touched.tables.items() if index in tables
    }
    return TouchedRows(spec.layout, covered)
