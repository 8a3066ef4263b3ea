"""Whatever is lost in training, tables, a stream and a search: the bits are those of the undisturbed run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.faults import KINDS, WORKLOADS, Calm, check


def checked(seeds: range, folder: Path) -> Counter[str]:
    """Return how many seeds there were of each workload and kind, and how many took errors."""
    found, undisturbed = Counter[str](), dict[str, Calm]()
    for seed in seeds:
        ended = check(seed, folder, undisturbed)
        assert ended.right, f"seed {seed}: {ended}"
        found.update([ended.workload, ended.kind, *(["errors"] if ended.errors else [])])
    return found


def test_some_faults(tmp_path: Path) -> None:
    found = checked(range(4), tmp_path)
    assert sum(found[kind] for kind in KINDS) > 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_very_many_faults(tmp_path: Path) -> None:
    found = checked(range(1000, 1300), tmp_path)
    print(found)
    assert min(found[kind] for kind in KINDS) > 40
    assert {found[workload.__name__] for workload in WORKLOADS} == {75}
