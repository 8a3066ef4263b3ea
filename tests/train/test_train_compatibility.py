"""A sample of benchmarks/compatibility.py: what public databases hold trains as in plain torch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from compat import compare

pytest.importorskip("expecttest")  # torch's databases need it
torch_own = pytest.importorskip("compat.torch_own")

_SAMPLE = 4


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def alone(tmp_path: Any) -> Iterator[Any]:
    from support.no_jvm import no_jvm

    with no_jvm(str(tmp_path), "local[1]") as session:
        yield session


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["modules", "optimizers"])
def test_a_sample_trains_as_torch(alone: Any, family: str) -> None:
    entries = random.Random(0).sample(list(getattr(torch_own, family)()), _SAMPLE)
    outcomes = {entry.name: compare.run(alone, entry) for entry in entries}
    assert {outcome.verdict for outcome in outcomes.values()} <= {"equal", "rounding", "refused"}, outcomes
    assert any(outcome.verdict == "equal" for outcome in outcomes.values())


def test_what_trains_something_else_is_found(alone: Any) -> None:
    entry = next(entry for entry in torch_own.optimizers() if entry.name.startswith("SGD[0]"))

    def make(dtype: torch.dtype) -> compare.Program:
        program = entry.make(dtype)
        return replace(program, given={"loss": lambda output, label: 1.01 * torch_own.squared(output, label)})

    assert compare.run(alone, compare.Entry("tests", "another loss", make)).verdict == "different"
