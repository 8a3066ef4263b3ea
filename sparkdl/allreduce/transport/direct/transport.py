"""The direct transport's driver side: who takes part, when it is used, what happens after a loss."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sparkdl._spark.errors import is_job_failure
from sparkdl.access.base import Access
from sparkdl.access.stages import Chain, Host
from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import Message, Problems, of_type
from sparkdl.allreduce.transport.base import Group, GroupResult
from sparkdl.allreduce.transport.direct.membership import Joining, Membership
from sparkdl.allreduce.transport.direct.peer import KIND, Peer
from sparkdl.allreduce.transport.direct.task import Assemble, Dismiss, GetReady, GroupTask, Rendezvous
from sparkdl.allreduce.transport.shuffle import ShuffleTransport
from sparkdl.compute.problems import FailedModel, LostPeer
from sparkdl.compute.worker import FitRef
from sparkdl.data.store.built import PartitionStore
from sparkdl.wire import frame
from sparkdl.wire.frame import Buffer

LONGEST_GROUP = 2000
"""Steps of one job: so many take more than a second, and the driver holds a report of each."""

_LINGER_SECONDS = 0.1
"""Where an executor has several task slots, so that each task gets a process of its own."""

_IDLE_SECONDS = 45.0
"""Spark ends Python processes that had no task for a minute."""

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds by shuffles after somebody was lost again; twice as many each time, fewer when all goes well."""

_UNTIL_AGAIN_SECONDS = 1.0
"""After a loss, groups by shuffles take about so long, or as long as the pause: the loss may soon be over.
While executors are away, each takes twice as long as the one before it."""

_READY_SECONDS = 60.0
"""So long executors that have come may take to get ready."""

_UNTIL_BACK_SECONDS = 0.25
"""So long is the first group without an executor that was there: it may be back soon, and takes part from the
next group on. Each further one is twice as long."""

_ROUNDS = 3
"""So often the processes that take part are told that the fit is over, until all have heard it."""

_MOST_TURNS = 3
"""So many more processes than slots an executor may have."""

_MOST_GRACE = 4
"""After losses a rank may be silent for up to so many times as long, until a group is completed."""

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
        self._ranks = len(store.partitions)
        self._store = store
        self._fit = fit
        self._profile = profile
        self._rendezvous = rendezvous
        self._shuffles = shuffles
        self._clock = clock
        self._chain = chain
        self._membership: Membership | None = None
        self._tasks = 0  # of the latest group
        self._hosts: Sequence[Host] = ()  # which ranks they run, if there are fewer tasks than ranks
        self._slots_then = 0  # task slots when these were chosen
        self._joining: Joining | None = None
        self._known: set[bytes] = set()  # ids of all processes that may have connections
        self._again = -float("inf")
        self._pause = 0.0
        self._last_group = 0
        self._longest_step = 0.0
        self._grace = 1  # times the patience
        self._direct_step, self._shuffled_step = 0.01, 0.1  # seconds; guesses until there are any
        self._away = _UNTIL_BACK_SECONDS
        self._told = False
        self._failures = 0
        self._failed: FailedModel | None = None  # in the latest group

    @property
    def longest_group(self) -> int:
        """How many steps may be one group, now."""
        if self._is_possible():
            if not self._is_away():
                return LONGEST_GROUP
            return max(1, min(LONGEST_GROUP, int(self._away / self._direct_step)))
        longest = self._shuffles.longest_group
        if not self._may_be_back():
            return longest
        seconds = max(_UNTIL_AGAIN_SECONDS, self._pause)
        return max(1, min(longest, int(seconds / self._shuffled_step)))

    @property
    def is_joining(self) -> bool:
        """Whether executors that have come are getting ready, and groups run without them until then.

        A Python process takes seconds to start, and the other tasks of a group would wait for it.
        """
        slots = min(self._slots(), self._ranks)
        if self._chain.gathering is None or not 0 < self._tasks < slots:
            self._stop_joining()
            return False
        if self._joining is None or (self._joining.slots < slots and self._joining.is_over(self._clock())):
            begun = self._access.begin_everywhere(GetReady(), profile=self._profile)
            self._joining = Joining(slots, begun, self._clock() + _READY_SECONDS)
        return not self._joining.is_over(self._clock())

    def run(self, group: Group) -> GroupResult:
        """Run a group directly; by shuffles after a loss, or if the module has failed in its one step.

        Raises:
            ModelError: if the module has failed, and the group cannot go by shuffles.
        """
        failed, self._failed = self._failed, None
        if failed is not None and self._begins_at(group, failed):
            # Spark cannot try one of the tasks again that exchange directly: the others would be gone.
            if not self._shuffles.is_possible:
                raise failed.error(str(group.steps[0]))
            self._failed = failed
            return self._shuffles.run(group)
        if len(group.steps) > self._shuffles.longest_group or self._is_possible():
            result = self._run(group)
        else:
            self._say_if_crowded(group)
            result = self._shuffles.run(group)
        if result.problems:  # how long it took says nothing of a step
            self._failed = next((p for p in result.problems if isinstance(p, FailedModel)), None)
            return result
        each = sum(result.seconds.values()) / len(group.steps)
        if not result.direct:
            self._shuffled_step = each
        else:
            self._grace = 1
            self._direct_step = each
            self._away = min(2 * self._away, _LONGEST_PAUSE) if self._is_away() else _UNTIL_BACK_SECONDS
        self._longest_step = max(self._longest_step, each)
        return result

    @staticmethod
    def _begins_at(group: Group, failed: FailedModel) -> bool:
        return len(group.steps) == 1 and group.steps[0].iteration == failed.iteration

    def forget(self, partition: int) -> None:
        """Forget where a partition's rows are, since its files are not there."""
        self._hosts = ()
        self._shuffles.forget(partition)

    def release(self) -> None:
        """Close all connections."""
        self._stop_joining()
        self._dismiss()
        self._shuffles.release()

    # -- running --------------------------------------------------------------------------------

    def _is_possible(self) -> bool:
        """Return whether all ranks can run at the same time, and nobody was lost a moment ago."""
        return self._clock() >= self._again and (
            self._chain.gathering is not None or self._slots() >= self._ranks
        )

    def _is_away(self) -> bool:
        """Return whether tasks run several ranks because executors have gone, or are not ready yet."""
        there = self._store.executors
        missing = self._slots() < min(self._ranks, there.count * there.tasks)
        return bool(self._hosts) and (missing or self.is_joining)

    def _may_be_back(self) -> bool:
        """Return whether what keeps tasks from exchanging directly may be over soon."""
        return self._failures > 0 or self._membership is not None

    def _say_if_crowded(self, group: Group) -> None:
        """Say once that not all ranks can run at the same time."""
        slots = self._slots()
        if slots < self._ranks and self._chain.gathering is None and not self._told:
            self._told = True
            _log.warning(
                "%s: %d partitions in %d task slots cannot exchange directly, since not all of them run at "
                "the same time; iterations go by shuffles until there are enough slots",
                group.name,
                self._ranks,
                slots,
            )

    def _place(self) -> None:
        """Choose which ranks each task of the next group runs."""
        if self.is_joining and self._hosts:
            return
        slots, gathering = self._slots(), self._chain.gathering
        if slots >= self._ranks or gathering is None:
            tasks, self._hosts = self._ranks, ()
        elif not self._hosts or slots != self._slots_then:
            self._hosts, self._slots_then = gathering.hosts(self._store.executors.tasks), slots
            tasks = len(self._hosts)
        else:
            tasks = self._tasks
        if tasks != self._tasks:  # processes of executors that have come are not among the members
            self._tasks, self._membership = tasks, None

    def _stop_joining(self) -> None:
        if self._joining is not None and self._joining.begun is not None:
            self._joining.begun.cancel()
        self._joining = None

    def _slots(self) -> int:
        executors = self._store.executors
        return self._access.count_executors() * executors.tasks

    def _run(self, group: Group) -> GroupResult:
        started, begin = time.time(), time.perf_counter()
        self._place()
        membership = self._membership
        if membership is None or self._clock() - membership.used > _IDLE_SECONDS:
            membership = self._membership = self._assemble(group)
        if membership is None:
            return self._lost(group, started, begin, [])
        self._last_group = max(self._last_group + 1, time.time_ns())
        plan, traits = group.plan, group.plan.traits
        start, count = replace(group.start, raises=False), len(group.steps)
        # A rank that computes for longer than ever before is no lost one.
        patience = max(self._grace * self._rendezvous.patience, 20 * self._longest_step)
        task = GroupTask(
            self._fit,
            plan.phases(start, group.steps),
            self._ranks,
            start.version.iteration,
            start.local,
            replace(self._rendezvous, patience=patience),
            self._last_group,
            membership.members,
            by_rank=bool(self._hosts),
        )
        first, last = start.version.iteration + 1, start.version.iteration + count
        what = f"iteration {last}" if first == last else f"up to iteration {last}"
        name, kept_bytes = f"{group.name}, {what}, direct", traits.kept_bytes
        try:
            gathering = self._chain.gathering
            if gathering is not None and self._hosts:
                frames, kept = gathering.run(task, self._hosts, group.broadcasts, name, kept_bytes=kept_bytes)
            else:
                frames, kept = self._chain.run(
                    [task], group.broadcasts, name, traits.message_bytes, kept_bytes=kept_bytes
                )
        except BaseException:
            self._membership = None  # tasks that failed have closed their connections
            raise
        peers, arrived = _sorted_out(frames)
        self._known |= {peer.id for peer in peers}
        lost = [p for told in of_type(arrived, Problems) for p in told.problems if isinstance(p, LostPeer)]
        if kept_bytes is not None and kept is None and not of_type(arrived, Problems):
            lost.append(LostPeer(start.version.iteration, 0, "what was to stay is not complete", begun=True))
        if lost:
            if kept is not None:
                self._access.unpersist(kept)
            # Only if no rank has begun, everything is as it was.
            begun = bool(peers) or any(problem.begun for problem in lost)
            return self._lost(group, started, begin, lost, arrived, begun=begun)
        membership.saw(peers, self._clock())
        self._pause, self._failures = self._pause / 2 if self._pause > _FIRST_PAUSE else 0.0, 0
        if self._told:
            _log.info("%s: tasks exchange directly again", group.name)
            self._told = False
        return GroupResult(arrived, kept, started, {"job": time.perf_counter() - begin}, direct=True)

    def _lost(
        self,
        group: Group,
        started: float,
        begin: float,
        lost: Sequence[LostPeer],
        arrived: Sequence[Message] = (),
        *,
        begun: bool = False,
    ) -> GroupResult:
        """Return that somebody was lost, and go on by shuffles for a while."""
        self._membership, self._hosts = None, ()
        if begun:  # or it takes longer than anybody has waited
            self._grace = min(2 * self._grace, _MOST_GRACE)
        else:  # other jobs may hold the slots for longer
            self._pause = max(self._pause, _FIRST_PAUSE)
        self._again = self._clock() + self._pause
        reason = "; ".join(sorted({f"rank {p.partition}: {p.reason}" for p in lost}))
        reason = reason or "not every task has found an address to listen at"
        tell = _log.debug if self._told else _log.warning
        tell(
            "%s: tasks cannot exchange directly (%s); this is tried again in %.0f s, and until it works "
            "iterations go on by shuffles",
            group.name,
            reason,
            self._pause,
        )
        self._told = True
        self._failures += 1
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        problem = LostPeer(group.start.version.iteration, lost[0].partition if lost else 0, reason, begun)
        told = [p for message in of_type(arrived, Problems) for p in message.problems]
        others = [p for p in told if not isinstance(p, LostPeer)]
        seconds = {"job": time.perf_counter() - begin}
        return GroupResult([Problems([*others, problem])], None, started, seconds, direct=True)

    # -- membership -----------------------------------------------------------------------------

    def _assemble(self, group: Group) -> Membership | None:
        """Let all processes that may run ranks become peers; ``None`` if some of them cannot."""
        access, profile = self._access, self._profile
        if self._tasks == 1:
            return Membership((), self._clock())
        access.describe(f"{group.name}, find peers")
        try:
            if self._fit.in_memory and self._tasks == self._ranks:
                stage = access.stage(
                    self._store.tokens,
                    Assemble(self._fit, self._rendezvous, 0.0),
                    group.broadcasts,
                    profile=profile,
                )
                found = access.collect(stage)
            else:
                # Spark gives a task to the process that has been idle for longest: after a failure there are
                # perhaps more processes than slots.
                times = self._store.executors.tasks * (1 + min(self._failures, _MOST_TURNS))
                task = Assemble(self._fit, self._rendezvous, _LINGER_SECONDS)
                found = access.run_everywhere(task, group.broadcasts, times=times, profile=profile)
        finally:
            access.describe(None)
        peers = list({peer.id: peer for peer in (Peer.read(frame.unpack(data)) for data in found)}.values())
        self._known |= {peer.id for peer in peers}
        return Membership(peers, self._clock()) if len(peers) >= self._tasks else None

    def _dismiss(self) -> None:
        """Let all processes that take part close their sockets."""
        left, self._known, self._membership = self._known, set(), None
        access = self._access
        slots, linger = (1, 0.0) if self._fit.in_memory else (self._store.executors.tasks, _LINGER_SECONDS)
        for _ in range(_ROUNDS):
            if not left:
                return
            access.describe("sparkdl: close connections")
            try:
                task = Dismiss(self._fit.fit_id, linger)
                heard = set(map(bytes, access.run_everywhere(task, times=slots, profile=self._profile)))
            except Exception as error:
                if not is_job_failure(error):
                    raise
                _log.debug("connections of fit %s were not closed: %s", self._fit.fit_id, error)
                return
            finally:
                access.describe(None)
            if not heard:  # the others are gone
                return
            left -= heard


def _sorted_out(frames: Sequence[Buffer]) -> tuple[list[Peer], list[Message]]:
    """Return where the ranks have run, and what they have told."""
    peers: list[Peer] = []
    arrived: list[Message] = []
    for data in frames:
        if frame.kind_of(data) == KIND:
            peers.append(Peer.read(frame.unpack(data)))
        else:
            arrived.append(messages.decode(data))
    return peers, arrived
