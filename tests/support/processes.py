"""Executors of real Python processes that run the real tasks of transports as Spark would, without a JVM.

A process is forked off a server that has imported everything, as by PySpark's daemon, and keeps its state
from task to task. It can be killed, stopped, or lose its executor's files in the middle of a task.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
from pyspark import broadcast

from sparkdl._spark.frames import keyed_by
from sparkdl.access.in_pieces import RESULT, STATE
from sparkdl.access.stages import Host, by_executor
from sparkdl.allreduce.transport import stages as shuffled
from sparkdl.allreduce.transport.direct import endpoint, mesh
from sparkdl.allreduce.transport.direct import task as direct
from sparkdl.compute.worker import forget_fit
from sparkdl.data.store.partition import Token
from sparkdl.wire import frame

_ATTEMPTS = 4
"""So often Spark runs a task before it gives the job up."""


class JobFailedError(Exception):
    """A task failed too often; what Spark would say of it."""

    __module__ = "pyspark.errors"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to a task.

    Attributes:
        kind: ``kill``, ``stop``, ``raise``, or ``vanish``: its executor is lost, with its files.
        tick: when, counted in phases and waits of the task.
        resumes: whether a process that is stopped goes on when all others are done; else it is killed then.
    """

    kind: str
    tick: int
    resumes: bool = False


# -- in the child ---------------------------------------------------------------------------------

_fault: Fault | None = None
_ticks = 0


def _tick() -> None:
    global _ticks
    if _fault is None:
        return
    _ticks += 1
    if _ticks != _fault.tick:
        return
    if _fault.kind == "raise":
        raise RuntimeError("injected")
    os.kill(os.getpid(), signal.SIGSTOP if _fault.kind == "stop" else signal.SIGKILL)


def _ticking(function: Callable[..., Any]) -> Callable[..., Any]:
    def ticking(*args: Any, **options: Any) -> Any:
        _tick()
        return function(*args, **options)

    return ticking


def _serve(pipe: connection.Connection, folder: str) -> None:
    """Run tasks until the pipe ends."""
    global _fault, _ticks
    os.environ["SPARK_LOCAL_DIRS"] = folder
    for module in (shuffled, direct):
        module.run_phase = _ticking(module.run_phase)  # type: ignore[attr-defined]
    mesh.Mesh._wait = _ticking(mesh.Mesh._wait)  # type: ignore[method-assign]
    endpoint.Endpoint.meet = _ticking(endpoint.Endpoint.meet)  # type: ignore[method-assign]
    while True:
        try:
            task, rank, frames, broadcasts, _fault = cloudpickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        _ticks = 0
        for number, data in broadcasts.items():
            broadcast._broadcastRegistry[number] = _Broadcast(data)
        try:
            answer: Any = [frame.join(frame.parts(found)) for found in task(rank, iter(frames))]
        except Exception:
            answer = traceback.format_exc()
        pipe.send_bytes(cloudpickle.dumps(answer))


@dataclass
class _Broadcast:
    value: bytes


@dataclass(frozen=True, slots=True)
class Usage:
    """Task that says what its process has: endpoints, open files, threads, memory in MiB."""

    def __call__(self, _: int, frames: Iterator[Any]) -> Iterator[bytes]:
        deque(frames, maxlen=0)
        status = Path("/proc/self/status").read_text()
        memory = int(status.split("RssAnon:")[1].split()[0]) >> 10
        threads = len(os.listdir("/proc/self/task"))
        files = len(os.listdir("/proc/self/fd"))
        yield f"{len(endpoint._endpoints)} {files} {threads} {memory}".encode()


@dataclass(frozen=True, slots=True)
class _Forget:
    fit_id: str

    def __call__(self, _: int, frames: Iterator[Any]) -> Iterator[bytes]:
        deque(frames, maxlen=0)
        forget_fit(self.fit_id)
        yield b""


# -- in the parent --------------------------------------------------------------------------------


class _Process:
    def __init__(self, context: Any, folder: Path) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, str(folder)), daemon=True)
        self.process.start()
        theirs.close()
        self.used = 0.0
        self.rank: int | None = None
        self.fault: Fault | None = None

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Processes:
    """Executors with some task slots each, a process for each slot.

    Args:
        folder: for the executors' files.
        executors: how many.
        slots: task slots of each.

    Attributes:
        faults: draws what happens to a task, given the numbers of the stage and the rank.
        replaced: how many processes were replaced.
        stages: how many stages have run.
        retried: how many tasks have run again.
    """

    def __init__(self, folder: Path, executors: int, slots: int = 1) -> None:
        self._context = multiprocessing.get_context("forkserver")
        # Torch imports its compiler with the first optimizer: a second and a half in each process.
        preload = [
            "support.processes",
            "support.ranks",
            "sparkdl.train.trainer",
            "torch._dynamo",
            "support.frozen",
        ]
        self._context.set_forkserver_preload(preload)
        self._folder = folder
        self.slots = slots
        self._number = 0
        self.random = random.Random(0)
        self.moves = 0.0
        self.faults: Callable[[int, int], Fault | None] = lambda stage, rank: None
        self.replaced = self.stages = self.retried = 0
        self._executors = [self._executor() for _ in range(executors)]

    def _executor(self) -> tuple[Path, list[_Process]]:
        self._number += 1
        folder = self._folder / f"executor-{self._number}"
        folder.mkdir(parents=True)
        return folder, [_Process(self._context, folder) for _ in range(self.slots)]

    @property
    def executors(self) -> int:
        return len(self._executors)

    def all(self) -> list[_Process]:
        return [process for _, processes in self._executors for process in processes]

    def close(self) -> None:
        for process in self.all():
            process.kill()

    def replace(self, process: _Process) -> None:
        """Let another process take a process's slot."""
        process.kill()
        self.replaced += 1
        for folder, processes in self._executors:
            if process in processes:
                processes[processes.index(process)] = _Process(self._context, folder)

    def vanish(self, number: int) -> None:
        """Let another executor take an executor's place."""
        folder, processes = self._executors[number]
        for process in processes:
            process.kill()
        shutil.rmtree(folder)
        self.replaced += len(processes)
        self._executors[number] = self._executor()

    def run(
        self,
        task: Any,
        inputs: Sequence[Sequence[bytes]],
        broadcasts: dict[int, bytes],
        *,
        patience: float = 60,
    ) -> list[list[bytes]]:
        """Run a stage; return the frames of each of its tasks."""
        self.stages += 1
        stage, packed = self.stages, cloudpickle.dumps(task)
        waiting = deque(range(len(inputs)))
        attempts = [0] * len(inputs)
        found: dict[int, list[bytes]] = {}
        end = time.monotonic() + patience
        last = time.monotonic()
        failure = ""
        while len(found) < len(inputs):
            assert time.monotonic() < end, f"stage {stage} does not end"
            for rank in list(waiting):
                process = self._free(rank)
                if process is None:
                    continue
                waiting.remove(rank)
                if attempts[rank] == _ATTEMPTS:
                    self._drain()
                    raise JobFailedError(failure or "a process was lost too often")
                process.fault = self.faults(stage, rank) if not attempts[rank] else None
                process.rank, process.used = rank, time.monotonic()
                attempts[rank] += 1
                message = cloudpickle.loads(packed), rank, list(inputs[rank]), broadcasts, process.fault
                process.pipe.send_bytes(cloudpickle.dumps(message))
            busy = {process.pipe: process for process in self.all() if process.rank is not None}
            ready = connection.wait(list(busy), 0.05)
            if ready:
                last = time.monotonic()
            for pipe in ready:
                process = busy[pipe]  # type: ignore[index]
                rank = process.rank
                assert rank is not None
                try:
                    answer = cloudpickle.loads(process.pipe.recv_bytes())
                except (EOFError, OSError):  # killed, by itself or with its executor
                    waiting.append(rank)
                    self.retried += 1
                    waiting.extend(self._lose(process))
                    continue
                process.rank = None
                if isinstance(answer, str):
                    failure = answer
                    waiting.append(rank)
                    self.retried += 1
                else:
                    found[rank] = answer
            if time.monotonic() - last > 0.3:
                self._resume(busy.values())
        return [found[rank] for rank in range(len(inputs))]

    def _free(self, rank: int) -> _Process | None:
        """Return the process that has been idle for longest where a rank's rows are, or anywhere."""
        place = rank % len(self._executors)
        places = [place, *(n for n in range(len(self._executors)) if n != place)]
        if self.random.random() < self.moves:
            self.random.shuffle(places)
        for number in places:
            free = [process for process in self._executors[number][1] if process.rank is None]
            if free:
                return min(free, key=lambda process: process.used)
        return None

    def _lose(self, process: _Process) -> list[int]:
        """Replace a process, and its executor if that is its fate; return the tasks lost with it."""
        if process.fault is None or process.fault.kind != "vanish":
            self.replace(process)
            return []
        (number,) = (n for n, (_, processes) in enumerate(self._executors) if process in processes)
        lost = [p.rank for p in self._executors[number][1] if p.rank is not None and p is not process]
        self.vanish(number)
        return lost

    def _resume(self, busy: Iterable[_Process]) -> None:
        """Let processes that are stopped go on, or end them, as Spark ends executors that are silent."""
        for process in busy:
            if process.fault is not None and process.fault.kind == "stop":
                os.kill(process.process.pid, signal.SIGCONT if process.fault.resumes else signal.SIGKILL)

    def _drain(self) -> None:
        for process in self.all():
            if process.rank is not None:
                self.replace(process)

    def everywhere(self, task: Any) -> list[list[bytes]]:
        """Run a task in each process, however often that takes."""
        found = []
        for process in self.all():
            process.pipe.send_bytes(cloudpickle.dumps((task, 0, [], {}, None)))
        for process in self.all():
            answer = cloudpickle.loads(process.pipe.recv_bytes())
            assert not isinstance(answer, str), answer
            found.append(answer)
        return found

    def usage(self) -> list[tuple[int, int, int, int]]:
        """Return what each process has: endpoints, open files, threads, MiB of memory."""
        return [tuple(map(int, answer[0].split())) for answer in self.everywhere(Usage())]  # type: ignore[misc]

    def forget(self, fit_id: str) -> None:
        """Let all processes forget a fit."""
        self.everywhere(_Forget(fit_id))


@dataclass
class Jobs:
    """Runs jobs on processes; stands for ``FrameJobs`` and ``Chain`` of one fit."""

    processes: Processes
    tokens: Sequence[Token]
    broadcasts: dict[int, bytes]
    runs: list[str] = field(default_factory=list)
    """Names of the chains that have run."""
    stays: ClassVar[bool] = True

    @property
    def gathering(self) -> Gathered:
        """Runs tasks of several ranks."""
        return Gathered(self)

    def run(
        self,
        tasks: Sequence[Any],
        broadcasts: Any,
        name: str,
        frame_bytes: int,
        *,
        persisted_bytes: int | None = None,
    ) -> tuple[list[bytes], list[list[bytes]] | None]:
        """Run the stages of a chain."""
        self.runs.append(name)
        ranks = len(self.tokens)
        arrived: list[list[bytes]] = [[] for _ in range(ranks)]
        for task in tasks:
            inputs = [[token.to_frame(), *frames] for token, frames in zip(self.tokens, arrived, strict=True)]
            out = self.processes.run(task, inputs, self.broadcasts)
            arrived = [[] for _ in range(max(ranks, 2))]
            kept: list[list[bytes]] = [[] for _ in range(ranks)]
            for rank, frames in enumerate(out):
                for key, data in zip(frames[::2], frames[1::2], strict=True):
                    if task is tasks[-1] and keyed_by(key) == STATE:
                        kept[rank].append(data)
                    else:
                        arrived[keyed_by(key)].append(data)
        return arrived[RESULT], None if persisted_bytes is None else kept

    def forget(self, partition: int) -> None:
        """Do nothing: rows are not lost."""

    def release(self) -> None:
        """Do nothing."""

    def describe(self, name: str | None) -> None:
        """Do nothing."""

    def stage(self, tokens: Any, task: Any, broadcasts: Any = (), *, profile: Any = None) -> Any:
        """Return what :meth:`collect` runs."""
        return task

    def collect(self, task: Any) -> list[bytes]:
        """Run a task of each rank."""
        inputs = [[token.to_frame()] for token in self.tokens]
        return [data for frames in self.processes.run(task, inputs, self.broadcasts) for data in frames]

    def run_everywhere(
        self, task: Any, broadcasts: Any = (), *, times: int = 1, profile: Any = None
    ) -> list[bytes]:
        """Run a task on each executor."""
        inputs: list[list[bytes]] = [[] for _ in range(times * self.processes.executors)]
        return [data for frames in self.processes.run(task, inputs, self.broadcasts) for data in frames]

    def begin_everywhere(self, task: Any, *, times: int = 1, profile: Any = None) -> None:
        """Do nothing: processes are there at once."""

    def count_executors(self, *, look: bool = False) -> int:
        """Return how many executors there are."""
        return self.processes.executors

    def unpersist(self, kept: Any) -> None:
        """Do nothing."""


@contextlib.contextmanager
def processes(folder: Path, executors: int, slots: int = 1) -> Iterator[Processes]:
    """Start processes, and end them."""
    made = Processes(folder, executors, slots)
    try:
        yield made
    finally:
        made.close()


@dataclass
class Gathered:
    """Runs stages of fewer tasks than ranks on processes."""

    jobs: Jobs

    def executors(self) -> set[str]:
        """Return the executors' ids."""
        return {str(n) for n in range(self.jobs.count_executors())}

    def hosts(self, slots: int) -> list[Host]:
        """Return the tasks, each of some ranks."""
        frames = [token.to_frame() for token in self.jobs.tokens]
        places = [str(n % self.jobs.count_executors()) for n in range(len(frames))]
        return [Host(places[own[0]], [frames[n] for n in own]) for own in by_executor(places, slots)]

    def run(
        self, task: Any, hosts: Any, broadcasts: Any, name: str, *, persisted_bytes: int | None = None
    ) -> tuple[list[bytes], list[list[bytes]] | None]:
        """Run one stage with fewer tasks than ranks."""
        self.jobs.runs.append(name)
        inputs = [host.tokens for host in hosts]
        results: list[bytes] = []
        kept: list[list[bytes]] = [[] for _ in self.jobs.tokens]
        for frames in self.jobs.processes.run(task, inputs, self.jobs.broadcasts):
            for key, data in zip(frames[::2], frames[1::2], strict=True):
                to = keyed_by(key)
                (results if to == RESULT else kept[to - STATE]).append(data)
        return results, None if persisted_bytes is None else kept
