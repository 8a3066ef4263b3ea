"""Places of a store's partitions: after losses, executors that are there again may have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sparkdl.access.base import Access, described
from sparkdl.data.store.build import PartitionStore
from sparkdl.data.store.partition import Token
from sparkdl.wire import frame


def in_excess(places: Sequence[str], executors: int) -> list[int]:
    """Return the partitions that executors hold beyond an even share."""
    share = -(-len(places) // max(executors, 1))
    held: Counter[str] = Counter()
    excess = []
    for partition, place in enumerate(places):
        held[place] += 1
        if held[place] > share:
            excess.append(partition)
    return excess


def crowded(access: Access, store: PartitionStore) -> list[int]:
    """Return the partitions that executors hold beyond an even share now."""
    with described(access, "sparkdl: see where partitions are"):
        tokens = [Token.from_frame(frame.unpack(data)) for data in access.collect(store.tokens)]
    return in_excess([token.executor for token in tokens], access.count_executors())
