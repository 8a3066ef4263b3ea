"""Where a store's partitions lie: after losses, executors that are there again may have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sparkdl import frame
from sparkdl.access.base import Access
from sparkdl.data.built import Store, described
from sparkdl.data.store import Token


def in_excess(places: Sequence[str], executors: int) -> list[int]:
    """Return the partitions that executors hold beyond an even share.

    Args:
        places: the executor of each partition.
        executors: how many executors there are.
    """
    share = -(-len(places) // max(executors, 1))
    held: Counter[str] = Counter()
    excess = []
    for partition, place in enumerate(places):
        held[place] += 1
        if held[place] > share:
            excess.append(partition)
    return excess


def by_executor(places: Sequence[str], slots: int) -> list[list[int]]:
    """Return partitions in groups, each on one executor, of which none has more groups than task slots.

    Args:
        places: the executor of each partition.
        slots: task slots of an executor.
    """
    found: dict[str, list[int]] = {}
    for partition, place in enumerate(places):
        found.setdefault(place, []).append(partition)
    return [own[n::slots] for own in found.values() for n in range(min(slots, len(own)))]


def placed(access: Access, store: Store) -> list[tuple[Token, bytes]]:
    """Return the token of each partition, as it is now and as a frame; builds those again that are lost."""
    with described(access, "see where partitions are"):
        return [(Token.from_frame(frame.unpack(data)), data) for data in access.collect(store.tokens)]


def crowded(access: Access, store: Store) -> list[int]:
    """Return the partitions that executors hold beyond an even share now."""
    places = [token.executor for token, _ in placed(access, store)]
    return in_excess(places, access.count_executors())
