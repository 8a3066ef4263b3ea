"""The rows that a rank owns, from phase to phase: in this process's memory, with files for other processes.

A group takes each owner through a chain of changes. The first one counts the look-ups of the first step;
each further one applies the gradients of a step, and counts the look-ups of the next. As with the model of
the replicated plan, the executor keeps the state at the group's start as a file, and the changes since, from
which another process of this executor gets to any point of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import OwnedRows, RowGradients, WantedRows
from sparkdl.allreduce.plan import Directives, Participant
from sparkdl.allreduce.update.table import beginning, update_table
from sparkdl.compute.problems import LackingState, ProblemError
from sparkdl.compute.row_owner import RowOwner
from sparkdl.compute.start import Start
from sparkdl.compute.stopwatch import ROW_UPDATE
from sparkdl.keyed.mix import Ids, distinct
from sparkdl.nn.embedding import embedding_variables


@dataclass(frozen=True, slots=True)
class Point:
    """A point in the chain of a group."""

    start: Start  # the model from which the group starts
    done: int  # steps whose gradients have been applied
    counted: bool  # whether the look-ups of the next step have been counted

    @property
    def chain(self) -> list[str]:
        """Names of all points from the group's start up to this one."""
        start = self.start
        first = start.version.iteration
        names = [f"{start.version.name}.begin"]
        names += [f"{start.generation}-{first + n}.counted" for n in range(self.done + self.counted)]
        return names if self.counted or not self.done else [*names, f"{start.after(self.done).name}.begin"]

    @property
    def iteration(self) -> int:
        """Completed iterations."""
        return self.start.version.iteration + self.done


@dataclass(frozen=True, slots=True)
class Touched:
    """The entries of a table that a change has touched."""

    updated: Ids  # ids whose rows have new values
    gone: Ids  # ids that were evicted after that
    seen: Ids  # ids whose look-ups were counted after that


@dataclass(frozen=True, slots=True)
class RowChange:
    """What a change has done to an owner's rows."""

    iteration: int
    touched: Mapping[str, Touched]
    figures: Mapping[str, Mapping[str, int]]

    def rows(self, owner: RowOwner) -> OwnedRows:
        """Return the change as other processes of the executor make it."""
        entries = {
            name: owner.tables[name].changes(distinct([own.updated, own.seen]), own.gone, self.iteration)
            for name, own in self.touched.items()
        }
        return OwnedRows(entries, self.figures)


def bring(me: Participant, point: Point, change: Callable[[RowOwner], RowChange] | None = None) -> RowOwner:
    """Return what this rank owns at a point of the group.

    ``change`` makes the last change of the chain; it is ``None`` if that was made before. Raises ProblemError
    if this executor lacks what came before.
    """
    worker, chain = me.worker, point.chain
    owner = worker.owners.get((me.rank, me.ranks))
    if owner is not None and owner.at == chain[-1]:
        return owner
    if owner is None or owner.at not in chain:
        owner = None  # what is outdated goes before its successor comes
        worker.owners.pop((me.rank, me.ranks), None)
        owner = worker.owners[me.rank, me.ranks] = _base(me, point.start, chain[0])
    for at in chain[chain.index(owner.at) + 1 :]:
        known = _read(me, at)
        if known is not None:
            owner.apply(known.tables, known.figures, at)
        elif at == chain[-1] and change is not None:
            owner.at = ""
            made = change(owner)
            owner.figures, owner.seconds, owner.at = made.figures, dict(me.clock.laps), at
            if not worker.files.in_memory and not me.stays:
                worker.row_files.write(_name(me, at), [messages.encode(made.rows(owner))])
        else:
            raise ProblemError(LackingState(point.iteration, f"rows of rank {me.rank} at {at}"))
    return owner


def leave_base(me: Participant, point: Point, owner: RowOwner) -> None:
    """Leave all rows for the next group's processes."""
    if not me.worker.files.in_memory:
        me.worker.row_files.write(_name(me, point.chain[-1]), [messages.encode(changes(owner, 0))])


def delete_outdated(me: Participant, start: Start) -> None:
    """Delete this rank's files that a group which begins, or goes back to its start, does not need."""
    if me.worker.files.in_memory:
        return
    base, mine = f"{start.version.name}.begin", f".{me.rank}-of-{me.ranks}"
    begin = f"{start.generation}-{start.version.iteration}.counted"
    me.worker.row_files.discard(
        lambda name: name.endswith(mine) and name.removesuffix(mine) not in (base, begin)
    )


def changed(
    owner: RowOwner,
    me: Participant,
    point: Point,
    gradients: Sequence[RowGradients],
    wanted: Sequence[WantedRows],
    directives: Directives | None,
) -> RowChange:
    """Apply the gradients of a step, evict, and count the look-ups of the next step; leads to ``point``.

    ``directives`` are for the step that ends; ``None`` if none does. Raises ProblemError if a gradient is not
    finite.
    """
    spec, iteration = me.worker.spec, point.iteration
    groups = {param.name: param.group for param in spec.layout.params}
    touched, figures = {}, {}
    me.clock.lap("weights_in")
    for name, table in owner.tables.items():
        group = groups.get(f"{name}.weight")
        updated: Ids = np.empty(0, np.int64)
        if directives is not None and group is not None:
            updated = update_table(table, name, group, spec.rule, gradients, directives, iteration - 1)
        before = len(table)
        gone = table.evict(iteration) if point.counted else updated[:0]
        evicted = before - len(table)  # ids that waited for a row are gone, too
        me.clock.lap(ROW_UPDATE)
        asked = [message.tables[name] for message in wanted]
        new = first = looked_up = hot = 0
        seen = distinct(part.ids for part in asked)
        if len(seen):
            counts = np.zeros(len(seen), np.int64)
            for part in asked:
                counts[np.searchsorted(seen, part.ids)] += part.counts
            fresh = beginning(spec.rule, group) if group is not None else dict
            new = table.count(seen, counts, iteration, fresh, point.start.version.iteration)
            first, looked_up, hot = table.first, int(counts.sum()), table.hot
        me.clock.lap("weights_in")
        touched[name] = Touched(updated, gone, seen)
        figures[name] = {
            "rows": len(table),
            "ids": table.known,
            "new": new,
            "evicted": evicted,
            "changed": first,  # by this group
            "looked_up": looked_up,
            "hot": hot,
        }
    return RowChange(iteration, touched, figures)


def changes(owner: RowOwner, since: int) -> OwnedRows:
    """Return what has changed since so many completed iterations, as Spark keeps it; 0 for all."""
    return OwnedRows({name: table.changed(since) for name, table in owner.tables.items()})


def _base(me: Participant, start: Start, at: str) -> RowOwner:
    """Return what the rank owns at the start of a group."""
    variables = embedding_variables(me.worker.spec.module)
    if start.weights is not None:
        if not start.seed:
            first = {
                name: variable.store.entries().of_owner(me.rank, me.ranks).without_state()
                for name, variable in variables.items()
            }
            return RowOwner.of(variables, first, at, me.worker.row_memory)
        packed = start.seed[len(start.seed) - me.ranks + me.rank].read(once=True)
        message = messages.decode(packed)
        assert isinstance(message, OwnedRows)
        return RowOwner.of(variables, message.tables, at, me.worker.row_memory)
    known = _read(me, at)
    if known is None:
        raise ProblemError(LackingState(start.version.iteration, f"rows of rank {me.rank}"))
    return RowOwner.of(variables, known.tables, at, me.worker.row_memory)


def _read(me: Participant, at: str) -> OwnedRows | None:
    found = me.worker.row_files.read(_name(me, at))
    if found is None:
        return None
    message = messages.decode(found[0])
    assert isinstance(message, OwnedRows)
    return message


def _name(me: Participant, at: str) -> str:
    return f"{at}.{me.rank}-of-{me.ranks}"
