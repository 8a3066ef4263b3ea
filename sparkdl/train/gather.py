"""A chain's tasks where slices have owners: every iteration is a scatter of shards and a gather of slices.

Task n of the first stage after a forward-backward owns slice n: it receives shard n of all gradients, updates
its slice and hands it to every partition (:class:`SyncSlice`). The task of the next stage puts the slices
together and goes on with the next forward-backward (:class:`Gather`). Together they move what a ring
all-reduce moves, and the driver sees none of it. An update that needs sums over all slices has a further
stage for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparkdl import frame
from sparkdl._spark import broadcast_value, key
from sparkdl.allreduce import slices, update
from sparkdl.allreduce.codec import Cast, encode, rounded
from sparkdl.allreduce.codec import decode as decode_values
from sparkdl.allreduce.weights import WeightsRef
from sparkdl.frame import Array, Buffer, Frame, Packed, Parts
from sparkdl.optim.reduction import add_up
from sparkdl.train import replica, stage
from sparkdl.train.executor_files import decode
from sparkdl.train.forward_backward import ForwardBackward, Stopwatch
from sparkdl.train.kept import master_frame
from sparkdl.train.replica import Replica, Start, Version
from sparkdl.train.stage import ProblemError
from sparkdl.train.worker import FitRef, FitSpec, Worker

_UNTOLD = ("reports", "codec")
_WEIGHTS = "weights"
"""Name of a version's slices on an executor: they lie beside what else belongs to it."""


@dataclass(frozen=True, slots=True)
class SyncSlice:
    """The task that updates a slice, the same for all slices.

    Attributes:
        fit: the fixed part.
        partitions: number of partitions, and of slices.
        start: what the group starts from.
        done: iterations of the group that are completed before this one.
        turn: what the driver says in this iteration.
        phase: how many sums over all slices are known.
        last: whether these are all.
        local: whether what a slice has for itself stays on its executor, as a file.
    """

    fit: FitRef
    partitions: int
    start: Start
    done: int
    turn: update.Turn
    phase: int
    last: bool
    local: bool

    def __call__(self, n: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        """Yield two frames for each partition: slice or partial sums, and what the slice has for itself."""
        if self.last:
            # Modules have loaded them, and one of them will be overwritten.
            replica.forget_own(self.start.version.after(self.done), _WEIGHTS)
        _, arrived = stage.receive(frames)
        worker = self.fit.worker()
        try:
            message, own = self._sync(worker, n, arrived)
        except ProblemError as error:
            yield from stage.pass_on(n, error.problems, self.partitions)
        else:
            for m in range(self.partitions):
                yield key(m)
                yield own if m == n else message
                yield key(m)
                yield b""
        worker.end_task()

    def _sync(self, worker: Worker, n: int, arrived: list[Frame]) -> tuple[Parts, Parts]:
        """Return the frame for other partitions, and the one for the slice's own."""
        stage.check(arrived)
        version = self.start.version.after(self.done)
        by_kind = _by_kind(stage.resolve(arrived, version))
        shards, told = by_kind["shard"], by_kind["reports"]
        totals = [array for message in by_kind["totals"] for array in message.arrays.values()]
        if self.phase:
            totals.append(add_up(m.arrays["partials"] for m in _in_order(by_kind["partials"])))
        results, kept = self._update(worker, n, version, totals, [*shards, *by_kind["report"]])
        (message,) = (results[kind] for kind in ("slice", "partials") if kind in results)
        if "reports" in results:
            told = [frame.unpack(results["reports"])]
        if not self.last:
            sums = kept if not self.phase else [_packed(shard) for shard in shards]
            known = frame.pack({"kind": "totals"}, {str(i): total for i, total in enumerate(totals)})
            left: list[Packed] = [message, known, *sums, *map(_packed, told)]
            return message, stage.own(left, version, f"left-{self.phase}-{n}", self.local)
        if told:
            message = _with_reports(message, told[0])
        own = stage.own([message, *kept], version.after(1), f"slice-{n}", self.local)
        return _coded(message, worker.spec.weights_codec), own

    def _update(
        self, worker: Worker, n: int, version: Version, totals: Sequence[Array], frames: list[Frame]
    ) -> tuple[dict[str, Parts], list[Parts]]:
        """Run the update as far as its totals are known; return its results by kind, and what stays."""
        spec = worker.spec
        start, stop = slices.bounds(spec.layout.numel, self.partitions)[n]
        before, master = self._before(n, start, stop)
        kept_before = self._kept(n)
        if kept_before and kept_before[0].meta["kind"] == "slice":
            master = kept_before.pop(0).arrays["params"]
        task = update.Update(
            spec.layout,
            start,
            stop,
            spec.rule,
            WeightsRef(version.iteration, before),
            spec.combine,
            spec.averaging,
            replace(self.turn, totals=tuple(totals)),
            master,
        )
        results: dict[str, Parts] = {}
        kept: list[Parts] = []
        for kind, parts in update.update_slice(task, [*kept_before, *frames]):
            if kind == update.STATE:
                kept.append(parts)
                continue
            meta = frame.unpack(parts).meta
            stage.check_update(meta, version.iteration)
            results[meta["kind"]] = parts
        return results, kept

    def _before(self, n: int, start: int, stop: int) -> tuple[Packed, Array | None]:
        """Return the model before this iteration, and its slice if the driver has sent the weights.

        The frame that they lie in need not stay in memory.
        """
        model = _model(self.start, self.done, n)
        params = model.arrays.get("params")
        if params is None:
            return model.weights, None
        return _without_weights(model), np.array(params[start:stop])

    def _kept(self, n: int) -> list[Frame]:
        """Return what the iteration before has left with the slice: itself, state, average."""
        if not self.done and not self.start.kept:
            return []
        if not self.done and self.start.seed:
            of_slice = decode(broadcast_value(self.start.seed[n], once=True))
            return [frame.unpack(data, writable=True) for data in of_slice]
        version, name = self.start.version.after(self.done), f"slice-{n}"
        # Slice and state are updated in place, which spares four copies of the slice. A task that runs again
        # does not find them any more, and the group is run again with a seed.
        found = replica.take_own(version, name) if self.last else replica.read_own(version, name)
        if found is None:
            raise stage.lacking(version.iteration, n)
        return [frame.unpack(data, writable=self.last) for data in found]


@dataclass(frozen=True, slots=True)
class Gather:
    """The task that puts slices together and goes on with the next forward-backward.

    Attributes:
        fit: the fixed part.
        partitions: number of partitions, and of slices.
        start: what the group starts from.
        done: iterations of the group that are completed after this stage's beginning.
        forward: the iteration to begin; ``None`` in the last stage.
    """

    fit: FitRef
    partitions: int
    start: Start
    done: int
    forward: ForwardBackward | None

    def __call__(self, n: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        """Yield two frames for each partition, or what goes to the driver and what stays."""
        clock = Stopwatch()
        token, arrived = stage.receive(frames)
        worker = self.fit.worker()
        try:
            model, weights, kept = self._assemble(n, arrived, worker.spec)
        except ProblemError as error:
            onward = self.partitions if self.forward is not None else None
            yield from stage.pass_on(n, error.problems, onward)
        else:
            if self.forward is not None:
                clock.lap("gather")
                loadable = {**model.arrays, "params": weights}
                yield from self.forward.compute(n, token, worker, clock, lambda: loadable)
            else:
                yield from self._finish(n, model, kept)
        worker.end_task()

    def _assemble(
        self, n: int, arrived: list[Frame], spec: FitSpec
    ) -> tuple[Replica, Sequence[Array], list[Frame]]:
        """Return the model after the iterations so far, its weights, and what stays with the partition."""
        version = self.start.version.after(self.done)
        if not self.done:
            if self.start.whole:
                replica.start_over(version)
            model = _model(self.start, 0, n)
            if self.start.weights is None:
                weights = _weights(version)
                if weights is None:
                    raise stage.lacking(version.iteration, _WEIGHTS)
                return model, weights, []
            # For the tasks that want nothing else, and need not read all that the driver has sent.
            replica.write(version, _without_weights(model), [], [])
            return model, self._rounded(model.arrays["params"], spec.weights_codec), []
        stage.check(arrived)
        by_kind = _by_kind(stage.resolve(arrived, version))
        (own,) = (message for message in by_kind["slice"] if "codec" not in message.meta)
        # By another task on this executor, or an earlier attempt of this one.
        made, weights = replica.read(version), _weights(version)
        if made is None or len(made.trail) != self.done or weights is None:
            before = _buffered(self.start, self.done - 1, n)
            made, weights = self._write(before, version, by_kind["slice"], spec)
        return made, weights, [own, *by_kind["state"], *by_kind["average"]]

    def _rounded(self, params: Array, codec: Cast) -> Sequence[Array]:
        """Return the weights as they would have arrived from the owners of the slices."""
        return [
            rounded(codec, params[start:stop]) for start, stop in slices.bounds(len(params), self.partitions)
        ]

    def _write(
        self, before: Replica, version: Version, parts: Sequence[Frame], spec: FitSpec
    ) -> tuple[Replica, Sequence[Array]]:
        """Leave the model, and its weights in slices, for the tasks on this executor."""
        parts = _in_order(parts)
        dtype = np.dtype(spec.layout.dtype)
        # They are put together when they are loaded, which copies them anyway.
        weights = {str(i): _params(part, spec.weights_codec, dtype) for i, part in enumerate(parts)}
        replica.write_own(version, _WEIGHTS, [frame.pack({"kind": _WEIGHTS}, weights)])
        arrays = {name: before.arrays[name] for name in ("buffers", "counters")}
        if "gradient" in parts[0].arrays:
            arrays["gradient"] = np.concatenate([part.arrays["gradient"] for part in parts])
        reports: dict[str, Any] = {}
        for part in parts:
            if "reports" in part.meta:
                reports = part.meta["reports"]
                arrays |= {name: part.arrays[name] for name in ("buffers", "counters") if name in part.arrays}
        told = [{name: v for name, v in part.meta.items() if name not in _UNTOLD} for part in parts]
        trail = [*before.trail, replica.report({"slices": told, "reports": reports})]
        replica.write(version, frame.pack({"kind": "model"}, arrays), [], trail)
        made = replica.read(version)
        if made is None:
            raise RuntimeError(f"{version.path} is gone as soon as it was written")
        return made, list(weights.values())

    def _finish(self, n: int, model: Replica, kept: list[Frame]) -> Iterator[bytes | Parts]:
        """Yield, keyed, what stays with the slice; the first one tells the driver how it went."""
        if n == 0:
            names = ("buffers", "counters", "gradient")
            arrays = {name: array for name, array in model.arrays.items() if name in names}
            yield key(update.RESULT)
            yield frame.pack({"kind": "trail", "trail": replica.read_trail(model.trail)}, arrays)
        own, *rest = kept
        for parts in (master_frame(own.arrays["params"]), *map(_packed, rest)):
            yield key(update.STATE)
            yield parts


def _model(start: Start, done: int, n: int) -> Replica:
    """Return the model after some iterations of a group; with weights only if the driver has sent them."""
    version = start.version.after(done)
    found = replica.read(version) if done else start.load_weights(once=True)
    if found is None or (done and len(found.trail) != done):
        raise stage.lacking(version.iteration, n)
    return found


def _buffered(start: Start, done: int, n: int) -> Replica:
    """Return the model after some iterations of a group, with its weights or without."""
    found = None if done else replica.read(start.version)
    return Replica(found.weights, []) if found is not None else _model(start, done, n)


def _weights(version: Version) -> Sequence[Array] | None:
    """Return the slices that a task of this executor has left."""
    found = replica.read_own(version, _WEIGHTS)
    return None if found is None else list(frame.unpack(found[0]).arrays.values())


def _without_weights(model: Replica) -> Parts:
    """Pack buffers and counters alone."""
    return frame.pack({"kind": "model"}, model.copy_buffers())


def _by_kind(frames: Sequence[Frame]) -> defaultdict[str, list[Frame]]:
    found: defaultdict[str, list[Frame]] = defaultdict(list)
    for message in frames:
        found[message.meta["kind"]].append(message)
    return found


def _in_order(frames: Sequence[Frame]) -> list[Frame]:
    """Return frames of slices in the order of these."""
    return sorted(frames, key=lambda message: int(message.meta["start"]))


def _packed(message: Frame) -> Parts:
    """Lay a frame out again, to be passed on."""
    return frame.pack(message.meta, message.arrays)


def _coded(message: Parts, codec: Cast) -> Parts:
    """Write a slice for its way to other partitions."""
    own = frame.unpack(message)
    encoded = encode(codec, own.arrays["params"])
    others = {name: array for name, array in own.arrays.items() if name != "params"}
    coded = {f"params.{name}": array for name, array in encoded.arrays.items()}
    return frame.pack({**own.meta, "codec": dict(encoded.meta)}, {**others, **coded})


def _params(part: Frame, codec: Cast, dtype: np.dtype[Any]) -> Array:
    """Return a slice as it arrives, also the partition's own."""
    if "codec" not in part.meta:
        return rounded(codec, part.arrays["params"])
    prefix = "params."
    coded = {n.removeprefix(prefix): a for n, a in part.arrays.items() if n.startswith(prefix)}
    return decode_values(part.meta["codec"], coded, dtype)


def _with_reports(message: Parts, told: Frame) -> Parts:
    """Let the first slice carry the reports, and the buffers that came with them."""
    own = frame.unpack(message, writable=True)  # by the next update, as that of other slices
    return frame.pack({**own.meta, "reports": told.meta}, {**own.arrays, **told.arrays})
