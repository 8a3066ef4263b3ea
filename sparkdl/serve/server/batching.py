"""Micro-batches: requests that wait at the same time share a forward pass."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

if TYPE_CHECKING:
    from sparkdl.serve.server.versions import ServedVersion

Observe = Callable[[int, float], None]
"""Is told of each forward pass: its rows and seconds."""


class Full(Exception):  # noqa: N818 -- it is no error of the program's
    """The queue has no room for a request's rows."""


@dataclass(slots=True)
class _Waiting:
    group: ServedVersion
    rows: Any
    future: Future[pa.Table]
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """A bounded queue of requests, and threads that take them from it, as many as a pass may have.

    A free thread begins at once, or waits ``wait`` seconds after a request came for others to join it. While
    all threads compute, requests gather by themselves. Requests for different versions of a model never share
    a pass, so a new version needs no pause. A pass has at most ``max_rows``, the queue ``max_queue`` rows;
    each thread has its copy of the model.
    """

    def __init__(
        self,
        *,
        threads: int,
        torch_threads: int,
        max_rows: int,
        max_queue: int,
        wait: float,
        observe: Observe = lambda rows, seconds: None,
    ) -> None:
        self._max_rows, self._max_queue, self._wait = max_rows, max_queue, wait
        self._torch_threads, self._observe = torch_threads, observe
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self.rows_waiting = 0
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"sparkdl-serve-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, group: ServedVersion, rows: Any) -> Future[pa.Table]:
        """Put a request in the queue; its future gets the result; raises Full if the queue has no room."""
        waiting = _Waiting(group, rows, Future())
        with self._changed:
            if self._closing or self.rows_waiting + len(rows) > self._max_queue:
                raise Full
            self._queue.append(waiting)
            self.rows_waiting += len(rows)
            self._changed.notify()
        return waiting.future

    def close(self) -> None:
        """Finish what is in the queue and end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        torch.set_num_threads(self._torch_threads)
        while taken := self._take():
            requests = [each for each in taken if each.future.set_running_or_notify_cancel()]
            if requests:
                self._run(requests[0].group.copies[number], requests)

    def _take(self) -> list[_Waiting]:
        """Return the next requests, of one version; none when all is done."""
        with self._changed:
            while not self._queue:
                if self._closing:
                    return []
                self._changed.wait()
            taken = [self._pop()]
            count, until = len(taken[0].rows), taken[0].arrived + self._wait
            while count < self._max_rows:
                if not self._queue:
                    left = until - time.monotonic()
                    if left <= 0 or self._closing or not self._changed.wait(left):
                        break
                    continue
                following = self._queue[0]
                if following.group is not taken[0].group or count + len(following.rows) > self._max_rows:
                    break
                taken.append(self._pop())
                count += len(following.rows)
            if self._queue:  # the notice of what is left may have reached this thread
                self._changed.notify()
            return taken

    def _pop(self) -> _Waiting:
        waiting = self._queue.popleft()
        self.rows_waiting -= len(waiting.rows)
        return waiting

    def _run(self, model: Any, requests: list[_Waiting]) -> None:
        """Compute results; where the pass fails, each request by itself, so that one harms no other."""
        started = time.monotonic()
        try:
            results = model.run([request.rows for request in requests])
        except BaseException as error:
            if len(requests) == 1:
                requests[0].future.set_exception(error)
                return
            for request in requests:
                self._run(model, [request])
            return
        # Before the answers: whoever has one finds it counted.
        self._observe(sum(len(r.rows) for r in requests), time.monotonic() - started)
        for request, result in zip(requests, results, strict=True):
            request.future.set_result(result)
