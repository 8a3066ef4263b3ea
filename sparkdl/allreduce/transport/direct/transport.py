"""The direct transport's driver side: groups as one stage, and what happens after a loss."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparkdl.access.base import Access, Chain, Persisted
from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import Message, Problems, of_type
from sparkdl.allreduce.plan import LONGEST_GROUP
from sparkdl.allreduce.transport.base import Group, GroupResult
from sparkdl.allreduce.transport.direct.membership import Membership
from sparkdl.allreduce.transport.direct.peer import KIND, Peer
from sparkdl.allreduce.transport.direct.placement import Placement
from sparkdl.allreduce.transport.direct.task import GroupTask, Rendezvous
from sparkdl.allreduce.transport.stages import ShuffleTransport
from sparkdl.compute.problems import FailedModel, LostPeer
from sparkdl.compute.worker import FitRef
from sparkdl.data.store.build import PartitionStore
from sparkdl.wire import frame
from sparkdl.wire.frame import Buffer

_log = logging.getLogger("sparkdl")


class DirectTransport:
    """Runs a group as one stage whose tasks exchange among themselves; by shuffles where that cannot be."""

    def __init__(
        self,
        access: Access,
        store: PartitionStore,
        fit: FitRef,
        profile: Any,
        chain: Chain,
        rendezvous: Rendezvous,
        shuffles: ShuffleTransport,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._fit = fit
        self._rendezvous = rendezvous
        self._shuffles = shuffles
        self._clock = clock
        self._chain = chain
        self._placement = Placement(access, store, chain, profile, clock)
        self._membership = Membership(access, store, fit, rendezvous, profile, clock)
        self._back_off = BackOff()
        self._pace = Pace()
        self._last_group = 0
        self._has_warned = False
        self._failed: FailedModel | None = None  # in the latest group

    @property
    def longest_group(self) -> int:
        """How many steps may be one group, now."""
        if self._is_possible():
            if not self._placement.is_short:
                return LONGEST_GROUP
            return max(1, min(LONGEST_GROUP, int(self._pace.short / self._pace.direct)))
        longest = self._shuffles.longest_group
        if not self._back_off.failures and not self._membership.is_known:
            return longest  # there are too few slots, and there may never be more
        return max(1, min(longest, int(self._back_off.seconds / self._pace.shuffled)))

    @property
    def is_joining(self) -> bool:
        """Whether executors that have come are getting ready, and groups run without them until then."""
        return self._placement.is_joining

    def run(self, group: Group) -> GroupResult:
        """Run a group directly; by shuffles after a loss, or if the module has failed in its one step.

        Raises:
            ModelError: if the module has failed, and the group cannot go by shuffles.
        """
        failed, self._failed = self._failed, None
        if failed is not None and [step.iteration for step in group.steps] == [failed.iteration]:
            # Spark cannot try one of the tasks again that exchange directly: the others would be gone.
            if not self._shuffles.is_possible:
                raise failed.error(str(group.steps[0]))
            self._failed = failed
            return self._shuffles.run(group)
        if len(group.steps) > self._shuffles.longest_group or self._is_possible():
            result = self._run(group)
        else:
            self._warn_if_crowded(group)
            result = self._shuffles.run(group)
        if result.problems:  # how long it took says nothing of a step
            self._failed = next((p for p in result.problems if isinstance(p, FailedModel)), None)
            return result
        self._pace.took(sum(result.seconds.values()) / len(group.steps), direct=result.direct)
        if result.direct:
            self._pace.is_short(self._placement.is_short)
        return result

    def forget(self, partition: int) -> None:
        """Forget where a partition's rows are, since its files are not there."""
        self._placement.forget()
        self._shuffles.forget(partition)

    def release(self, forget: Callable[[], None] | None = None) -> bool:
        """Close all connections; return whether all executors have been let ``forget`` the fit."""
        self._placement.release()
        deleted = self._membership.dismiss(forget)
        self._shuffles.release()
        return deleted

    def _is_possible(self) -> bool:
        """Return whether all ranks can run at the same time, and nobody was lost a moment ago."""
        return self._back_off.is_over(self._clock()) and self._placement.is_possible

    def _run(self, group: Group) -> GroupResult:
        started, begin = time.time(), time.perf_counter()
        placement, membership = self._placement, self._membership
        if not placement.choose():  # processes of executors that have come are not among the members
            membership.forget()
        members = membership.find(group.name, group.broadcasts, placement.tasks, self._back_off.failures)
        if members is None:
            return self._lost(group, started, begin, [])
        try:
            frames, persisted = self._run_stage(group, members)
        except BaseException:
            membership.forget()  # tasks that failed have closed their connections
            raise
        peers, arrived = _sorted_out(frames)
        membership.met(peers)
        reports = list(of_type(arrived, Problems))
        problems = [problem for message in reports for problem in message.problems]
        lost = [problem for problem in problems if isinstance(problem, LostPeer)]
        if group.plan.traits.persisted_bytes is not None and persisted is None and not problems:
            first = group.start.version.iteration
            lost.append(LostPeer(first, 0, "what was to stay is not complete", begun=True))
        if lost:
            if persisted is not None:
                self._access.unpersist(persisted)
            # Only if no rank has begun, everything is as it was.
            begun = bool(peers) or any(problem.begun for problem in lost)
            return self._lost(group, started, begin, lost, reports, begun=begun)
        membership.saw(peers)
        self._back_off.completed()
        if self._has_warned:
            _log.info("%s: tasks exchange directly again", group.name)
            self._has_warned = False
        return GroupResult(arrived, persisted, started, {"job": time.perf_counter() - begin}, direct=True)

    def _run_stage(self, group: Group, members: Sequence[Peer]) -> tuple[list[Buffer], Persisted | None]:
        """Run a group as one stage, whose task n has the token of rank n; return frames for the driver."""
        self._last_group = max(self._last_group + 1, time.time_ns())
        start, hosts = replace(group.start, raises=False), self._placement.hosts
        # A rank that computes for longer than ever before is no lost one.
        patience = max(self._back_off.patience * self._rendezvous.patience, 20 * self._pace.longest)
        task = GroupTask(
            self._fit,
            group.plan.phases(start, group.steps),
            self._placement.ranks,
            start.version.iteration,
            start.local,
            replace(self._rendezvous, patience=patience),
            self._last_group,
            members,
            by_rank=bool(hosts),
        )
        first, last = start.version.iteration + 1, start.version.iteration + len(group.steps)
        what = f"iteration {last}" if first == last else f"up to iteration {last}"
        name, traits = f"{group.name}, {what}, direct", group.plan.traits
        gathering = self._chain.gathering
        if gathering is not None and hosts:
            return gathering.run(task, hosts, group.broadcasts, name, persisted_bytes=traits.persisted_bytes)
        return self._chain.run(
            [task], group.broadcasts, name, traits.message_bytes, persisted_bytes=traits.persisted_bytes
        )

    def _lost(
        self,
        group: Group,
        started: float,
        begin: float,
        lost: Sequence[LostPeer],
        reports: Sequence[Problems] = (),
        *,
        begun: bool = False,
    ) -> GroupResult:
        """Return that somebody was lost, and go on by shuffles for a while."""
        self._membership.forget()
        self._placement.forget()
        # Where nobody reports a loss, fewer executors were found than there were a moment ago.
        gone = all(problem.gone for problem in lost)
        pause = self._back_off.lost(self._clock(), begun=begun, gone=gone)
        reason = "; ".join(sorted({f"rank {p.partition}: {p.reason}" for p in lost}))
        reason = reason or "not every task has found an address to listen at"
        warn = _log.debug if self._has_warned else _log.warning
        warn(
            "%s: tasks cannot exchange directly (%s); this is tried again in %.0f s, and until it works "
            "iterations go on by shuffles",
            group.name,
            reason,
            pause,
        )
        self._has_warned = True
        problem = LostPeer(group.start.version.iteration, lost[0].partition if lost else 0, reason, begun)
        seconds = {"job": time.perf_counter() - begin}
        return GroupResult([*reports, Problems([problem])], None, started, seconds, direct=True)

    def _warn_if_crowded(self, group: Group) -> None:
        """Say once that not all ranks can run at the same time."""
        if self._placement.is_possible or self._has_warned:
            return
        self._has_warned = True
        _log.warning(
            "%s: %d partitions in %d task slots cannot exchange directly, since not all of them run at "
            "the same time; iterations go by shuffles until there are enough slots",
            group.name,
            self._placement.ranks,
            self._placement.slots,
        )


def _sorted_out(frames: Sequence[Buffer]) -> tuple[list[Peer], list[Message]]:
    """Return where the ranks have run, and what they have told."""
    peers = [Peer.read(frame.unpack(data)) for data in frames if frame.kind_of(data) == KIND]
    return peers, [messages.decode(data) for data in frames if frame.kind_of(data) != KIND]


_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds by shuffles after somebody was lost again; twice as many each time, fewer when all goes well."""

_UNTIL_AGAIN_SECONDS = 1.0
"""After a loss, groups by shuffles take about so long, or as long as the pause: the loss may soon be over."""

_UNTIL_BACK_SECONDS = 0.25
"""So long is the first group without an executor that was there: it may be back soon, and takes part from the
next group on. Each further one is twice as long."""

_MOST_PATIENCE = 4
"""After losses a rank may be silent for up to so many times as long, until a group is completed."""


@dataclass(slots=True)
class BackOff:
    """Says for how long groups go by shuffles after a loss, and how long a silent rank is waited for."""

    failures: int = 0  # losses in a row
    patience: int = 1  # how many times as long as usual a rank may be silent
    _pause: float = 0.0
    _again: float = -float("inf")

    def is_over(self, now: float) -> bool:
        """Return whether tasks may exchange directly."""
        return now >= self._again

    @property
    def seconds(self) -> float:
        """About how long the groups until then take."""
        return max(_UNTIL_AGAIN_SECONDS, self._pause)

    def lost(self, now: float, *, begun: bool, gone: bool = False) -> float:
        """Note a loss; return the seconds until tasks exchange directly again."""
        if begun:  # or it takes longer than anybody has waited
            self.patience = min(2 * self.patience, _MOST_PATIENCE)
        elif self.failures or not gone:  # other jobs may hold the slots for longer
            self._pause = max(self._pause, _FIRST_PAUSE)
        pause = self._pause
        self._again = now + pause
        self._pause = min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        self.failures += 1
        return pause

    def completed(self) -> None:
        """Note a group without a loss."""
        self._pause = self._pause / 2 if self._pause > _FIRST_PAUSE else 0.0
        self.failures, self.patience = 0, 1


@dataclass(slots=True)
class Pace:
    """Seconds that steps have taken."""

    # a step of the latest group whose tasks exchanged directly; a guess until there is one
    direct: float = 0.01
    shuffled: float = 0.5  # likewise by shuffles
    longest: float = 0.0  # the longest step of all
    short: float = _UNTIL_BACK_SECONDS  # about how long the next group takes while executors are away

    def took(self, step: float, *, direct: bool) -> None:
        """Note a step of a completed group."""
        if direct:
            self.direct = step
        else:
            self.shuffled = step
        self.longest = max(self.longest, step)

    def is_short(self, short: bool) -> None:
        """Note whether executors were away in a group whose tasks exchanged directly."""
        self.short = min(2 * self.short, _LONGEST_PAUSE) if short else _UNTIL_BACK_SECONDS
