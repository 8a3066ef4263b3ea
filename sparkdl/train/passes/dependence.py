"""A trial whether the loss depends on attributes that forward has changed, on the same rows."""

from __future__ import annotations

from sparkdl import seeding
from sparkdl.compute.spec import FitSpec
from sparkdl.nn import serialize
from sparkdl.nn.batch import Batch
from sparkdl.nn.changing import Result, Watch, refuse_attributes
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import forward_backward
from sparkdl.nn.lightning import to_train
from sparkdl.nn.numerics import RandomState, make_replica


def check_attributes(shipped: bytes, spec: FitSpec, watch: Watch, batch: Batch) -> None:
    """Check that attributes that a forward pass has changed do not change loss and gradient.

    Raises:
        ModelError: naming the attributes.
    """
    changed = watch.attributes()
    first = serialize.loads(shipped)
    fresh = make_replica(to_train(first.module), spec.layout, spec.numerics)
    weights = fresh.params.numpy().copy(), fresh.buffers(), fresh.counters()
    used = make_replica(spec.module, spec.layout, spec.numerics)

    def run(replica: FlatModule, objective_of: FitSpec) -> Result:
        replica.load(*weights)
        generators = RandomState(replica.device)
        seeding.seed_task(spec.seed, 0, 0, 0)
        try:
            loss = forward_backward(replica, batch, objective_of.objective, None).loss
        finally:
            generators.restore()
        return Result(loss, replica.grad_numpy().copy())

    def same(result: Result) -> bool:
        return result.same_as(before)

    before = run(fresh, first)
    if not same(run(used, spec)):
        second = serialize.loads(shipped)
        again = run(make_replica(to_train(second.module), spec.layout, spec.numerics), second)
        if same(again):  # else the module gives other results each time in any state
            refuse_attributes(changed)
