"""Places of a file for records that come and go: none has two, and the file does not grow for ever."""

from __future__ import annotations

import numpy as np
import pytest

from sparkdl.keyed.log import Log


class Model:
    """Records, each with the place that the log has given it, and what cleaning has cost."""

    def __init__(self, segment: int) -> None:
        self.log = Log(segment)
        self.places: dict[int, int] = {}
        self.records = self.moved = self.runs = 0

    def write(self, count: int) -> None:
        """Write records, after cleaning as often as the log asks for it."""
        while (segment := self.log.to_clean(count)) is not None:
            own = set(self.log.places_of(segment).tolist())
            moving = [record for record, place in self.places.items() if place in own]
            self.log.free(np.array([self.places.pop(record) for record in moving], np.int32))
            self._put(moving)
            self.moved += len(moving)
        self._put(range(self.records, self.records + count))
        self.records += count

    def _put(self, records: list[int] | range) -> None:
        places = self.log.take(len(records))
        self.runs += 1 + int((np.diff(places) != 1).sum())
        for record, place in zip(records, places.tolist(), strict=True):
            assert 0 <= place < self.log.size
            self.places[record] = place
        assert len(set(self.places.values())) == len(self.places)

    def forget(self, records: list[int]) -> None:
        """Free the places of records."""
        self.log.free(np.array([self.places.pop(record) for record in records], np.int32))


@pytest.mark.parametrize("segment", [1, 7, 64])
def test_no_place_has_two_records_and_the_file_stays_small(segment: int) -> None:
    random = np.random.default_rng(segment)
    model = Model(segment)
    model.write(1000)
    for _ in range(200):
        gone = random.choice(list(model.places), 50, replace=False).tolist()
        model.forget(gone)
        model.write(50)
    assert len(model.places) == 1000
    assert model.log.size <= 2.2 * 1000 + 5 * segment
    assert model.moved <= 200 * 50  # no record is moved more often than another one is written


def test_records_that_are_written_together_lie_side_by_side() -> None:
    model = Model(100)
    model.write(1000)
    assert model.runs == 1
    model.forget(list(range(0, 1000, 2)))
    model.write(500)
    assert model.runs <= 3


def test_all_of_a_segment_can_be_free_at_once() -> None:
    model = Model(10)
    for _ in range(20):
        model.write(35)
        model.forget(list(model.places))
    assert model.moved == 0
    assert model.log.size <= 100
