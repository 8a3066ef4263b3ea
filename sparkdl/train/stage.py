"""What the tasks of all stages of a chain have in common: frames that arrive, problems that are passed on.

Every task sends exactly two frames to every partition, some of them empty, because what arrives is zipped
with the partition's token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sparkdl import frame
from sparkdl._spark import key
from sparkdl.allreduce import update
from sparkdl.data import store
from sparkdl.frame import Buffer, Frame, Packed, Parts
from sparkdl.train import replica
from sparkdl.train.executor_files import decode, encode
from sparkdl.train.replica import Version


class ProblemError(Exception):
    """Carries the news why an iteration cannot be completed."""

    def __init__(self, *problems: dict[str, Any]) -> None:
        super().__init__(problems)
        self.problems = problems


def receive(frames: Iterator[Buffer]) -> tuple[store.Token, list[Frame]]:
    """Tell the partition's token from what arrived for it: the first stage reads the token alone.

    What has arrived is this task's alone, which may overwrite it: another attempt receives it once more.
    """
    token = store.Token.from_frame(frame.unpack(next(frames)))
    # Zipped element by element with the token and empty frames.
    return token, [frame.unpack(data, writable=True) for data in frames if data]


def check(arrived: Sequence[Frame]) -> None:
    """Check that all gradients have arrived.

    Raises:
        ProblemError: if not; all problems, each once, in the order of their iterations and sources.
    """
    found: dict[str, dict[str, Any]] = {}
    for message in arrived:
        if message.meta["kind"] == "problem":
            problem = message.meta["problem"]
            for one in problem if isinstance(problem, list) else [problem]:
                found[repr(sorted(one.items()))] = one
    if found:
        raise ProblemError(*sorted(found.values(), key=lambda p: (p["iteration"], p.get("partition", 0))))


def check_update(meta: Mapping[str, Any], iteration: int) -> None:
    """Check what an update says.

    Raises:
        ProblemError: if it says that it could not be made, with the iteration.
    """
    if meta["kind"] == "problems":
        raise ProblemError(*({**problem, "iteration": iteration} for problem in meta["problems"]))


def resolve(arrived: Sequence[Frame], version: Version) -> list[Frame]:
    """Return what arrived, with what a partition has for itself in place of the frames that stand for it.

    Raises:
        ProblemError: if a file is not there.
    """
    found: list[Frame] = []
    for message in arrived:
        if message.meta["kind"] == "bundle":
            found += map(frame.unpack, decode(message.arrays["data"].data))
        elif message.meta["kind"] == "own":
            own = replica.read_own(version, message.meta["name"])
            if own is None:
                raise lacking(version.iteration, message.meta["name"])
            found += map(frame.unpack, own)
        else:
            found.append(message)
    return found


def own(frames: Sequence[Packed], version: Version, name: str, local: bool, *, lent: bool = False) -> Parts:
    """Return the frame by which a partition hands frames to itself.

    Args:
        frames: what it has for itself, whose arrays nobody may change from then on.
        version: the model that they belong to.
        name: tells them from others of that version on the executor.
        local: whether they stay as a file, since the next task probably runs where this one does.
        lent: whether their memory is the replica's, for the next gradient.
    """
    if local:
        return replica.write_own(version, name, frames, lent=lent)
    data = np.frombuffer(frame.join(encode(frames)), np.uint8)
    return frame.pack({"kind": "bundle"}, {"data": data})


def lacking(iteration: int, what: object) -> ProblemError:
    """Return the news that an executor lacks a file that an earlier stage has left."""
    return ProblemError({"kind": "replica", "what": str(what), "iteration": iteration})


def pass_on(
    partition: int, problems: Sequence[dict[str, Any]], partitions: int | None
) -> Iterator[bytes | Parts]:
    """Pass problems on to the next stage, of so many partitions, or to the driver."""
    if partitions is None:
        yield key(update.RESULT)
        yield frame.pack({"kind": "problems", "problems": list(problems)})
        return
    for n in range(partitions):
        yield key(n)
        yield b""
        yield key(n)
        yield frame.pack({"kind": "problem", "source": partition, "problem": list(problems)})
