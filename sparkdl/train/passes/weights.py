"""Sample weights: whether there is anything to learn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparkdl.data.dataset import Dataset
from sparkdl.data.sampler import in_order
from sparkdl.data.store import partition as store
from sparkdl.exceptions import DataError
from sparkdl.metrics import LOSS
from sparkdl.train.passes.sweep import sweep
from sparkdl.train.passes.validation import Monitor
from sparkdl.wire import frame
from sparkdl.wire.frame import Parts

_BLOCK = 1 << 16


def check_weights(data: Dataset, monitor: Monitor | None, sets: Mapping[str, Dataset]) -> None:
    """Check that some row counts for training, and for the monitored score if that is a loss."""
    _check(data, "there is nothing to train on")
    if monitor is not None and monitor.score == LOSS:  # a loss counts weights; metrics count rows
        missing = f"the monitored score, the loss on {monitor.set!r}, would never have a value"
        _check(sets[monitor.set], missing)


def _check(data: Dataset, missing: str) -> None:
    """Check that some row has a weight above zero; one short job if rows have weights."""
    if not data.plan.weighted:
        return
    describe = "sparkdl: look at the sample weights"
    found = sweep(data.access, data, _any_weight, [], describe=describe, doing="looking at the weights")
    if not any(message.meta["any"] for message in found):
        source = next(column.source for column in data.plan.columns if column.key == "weight")
        raise DataError(
            f"weight column {source!r}: all {len(data)} weights are zero, so {missing}. "
            "Expected some above zero; leave the weights out to count all rows alike",
            code="data-value",
        )


def _any_weight(partition: int, frames: Iterator[bytes]) -> Iterator[bytes | Parts]:
    """Tell whether a partition has a row with a weight above zero."""
    (token,) = [store.Token.from_frame(frame.unpack(data)) for data in frames]
    try:
        blocks = range(0, token.rows, _BLOCK)
        found = any(in_order(token, start, _BLOCK).read({"weight"})["weight"].any() for start in blocks)
        yield frame.pack({"kind": "weights", "partition": partition, "any": bool(found)})
    except store.PartitionMissingError:
        yield store.missing(partition)
