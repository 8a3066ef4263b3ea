"""State that forward changes and that cannot travel: whether loss and gradient depend on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparkdl import seeding
from sparkdl.compute.spec import FitSpec
from sparkdl.nn.batch import Batch
from sparkdl.nn.changing import ChangeWatch, Result, refuse_attributes, refuse_moving
from sparkdl.nn.embedding import embedding_variables
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import forward_backward
from sparkdl.nn.lightning import to_train
from sparkdl.nn.numerics import RandomState, Replica
from sparkdl.nn.objective import Objective, parts_of

_EVERY = 16
"""After so many steps a process looks at its frozen parameters again, and before that after 1, 2, 4 and 8."""

_FIRST_TRIAL = 4
"""After so many steps, and each time twice as many, attributes are tried: as long as some steps."""


def check_attributes(
    changed: Sequence[str],
    used: FlatModule,
    spec: FitSpec,
    fresh: Callable[[], FitSpec],
    batch: Batch,
    frozen: Sequence[int] = (),
) -> None:
    """Check that attributes that forward passes have changed do not change loss and gradient."""

    def make(like: FitSpec) -> FlatModule:
        replica = Replica(to_train(like.module), spec.layout, spec.numerics, used.device)
        replica.set_frozen(frozen)
        return replica

    first = fresh()
    unused = make(first)
    weights = unused.params.clone(), unused.buffers(), unused.counters()
    before = _run(unused, first.objective, spec.seed, batch, weights)
    if _run(used, spec.objective, spec.seed, batch, weights).same_as(before):
        return
    second = fresh()
    if _run(make(second), second.objective, spec.seed, batch, weights).same_as(before):
        refuse_attributes(changed)  # else the module gives other results each time in any state


def _run(replica: FlatModule, objective: Objective, seed: int, batch: Batch, weights: tuple) -> Result:  # type: ignore[type-arg]
    replica.load(*weights)
    generators = RandomState(replica.device)
    seeding.seed_task(seed, 0, 0, 0)
    try:
        loss = forward_backward(replica, batch, objective, None).loss
    finally:
        generators.restore()
    return Result(loss, replica.on_host(replica.grad).copy())


class Lookout:
    """Looks now and then whether a process's module has changed in ways that cannot travel.

    The dry run looks at the first forward pass; this finds what begins to change later.
    """

    def __init__(self, replica: FlatModule, spec: FitSpec, fresh: Callable[[], FitSpec]) -> None:
        self._replica, self._spec, self._fresh = replica, spec, fresh
        self._watch = ChangeWatch(replica, [*parts_of(spec.objective).values()])
        self._steps, self._next_trial = 0, _FIRST_TRIAL

    def step(self, batch: Batch, frozen: Sequence[int]) -> None:
        """Look, if it is time, after a forward pass."""
        self._steps += 1
        steps = self._steps
        if not steps % _EVERY or steps & (steps - 1) == 0:
            refuse_moving(self._watch.tensors()[1])
        if steps == self._next_trial:
            self._next_trial *= 2
            # A fresh module would have other rows of embedding variables, and take long to compile.
            if not self._spec.numerics.compile and not embedding_variables(self._replica.module):
                self._try(self._watch.attributes(), batch, frozen)
                self._watch.accept()

    def _try(self, changed: Sequence[str], batch: Batch, frozen: Sequence[int]) -> None:
        if not changed:
            return
        replica = self._replica
        gradient, params = replica.grad.clone(), replica.params.numpy(force=True).copy()
        before = params, replica.buffers(), replica.counters()
        try:
            check_attributes(changed, replica, self._spec, self._fresh, batch, frozen)
        finally:
            replica.load(*before)
            replica.grad.copy_(gradient)
