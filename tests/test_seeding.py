import random

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl import seeding

COORDINATES = st.tuples(
    st.integers(0, 2**64), st.integers(0, 10**4), st.integers(0, 10**6), st.integers(0, 10**4)
)


@settings(deadline=None)
@given(COORDINATES, COORDINATES)
def test_derive_is_a_64_bit_hash_of_its_coordinates(one, other):
    first, second = seeding.derive(seeding.TASK, *one), seeding.derive(seeding.TASK, *other)
    assert 0 <= first < 2**64
    assert (first == second) == (one == other)


def test_streams_are_independent():
    assert seeding.derive(seeding.ORDER, 1, 2, 3) != seeding.derive(seeding.TASK, 1, 2, 3)


def test_derive_stays_what_it_is():
    # A resumed run must draw what the interrupted one would have: this value may never change.
    assert seeding.derive(seeding.ORDER, 0, 0, 0) == 12750949206108985319
    assert seeding.derive(seeding.TASK, 2**40, 3, 7, 1) == 16471232733779254257


def draw():
    return torch.rand(3).tolist(), np.random.random(3).tolist(), random.random()  # noqa: NPY002


def test_seed_task_seeds_every_global_generator():
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        seeding.seed_task(0, 1, 2, 3)
        first = draw()
        seeding.seed_task(0, 1, 2, 3)
        again = draw()
        seeding.seed_task(0, 1, 2, 4)
        other = draw()
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_what_draws_from_a_seed_on_a_gpu_gives_its_generators_back(monkeypatch):
    said = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: ["before"])
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: said.append(seed))
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", said.append)
    with seeding.drawing(None):
        assert said == []
    with seeding.drawing(7):
        assert said == [7]
    assert said == [7, ["before"]]
