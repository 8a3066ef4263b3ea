import re
from dataclasses import FrozenInstanceError, fields

import pytest

from sparkdl.exceptions import ConfigError
from sparkdl.train import MaxEpoch, TrainConfig, Trainer


def test_defaults():
    config = TrainConfig()
    assert (config.batch_size, config.seed, config.end_when, config.shuffle) == (32, 0, MaxEpoch(1), True)
    assert config.micro_batch_size is config.num_shards is config.name is None


@pytest.mark.parametrize(
    "options", [{"batch_size": 1}, {"batch_size": 10**9}, {"seed": 2**64}, {"num_shards": 1}]
)
def test_accepted(options):
    TrainConfig(**options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("batch_size", v) for v in (0, -1, 1.5, "32", None, True)],
        *[("seed", v) for v in (-1, 0.5, None)],
        *[("micro_batch_size", v) for v in (0, 2.0)],
        *[("row_memory", v) for v in (0, 2.0)],
        *[("num_shards", v) for v in (0, "all")],
    ],
)
def test_numbers_are_checked_by_name(option, value):
    with pytest.raises(ConfigError, match=rf"^{option}={value!r}: expected an integer of at least [01] \("):
        TrainConfig(**{option: value})


@pytest.mark.parametrize("value", [None, 5, "MaxEpoch(5)", lambda previous, current: True])
def test_end_when_must_be_a_trigger(value):
    with pytest.raises(ConfigError, match=r"end_when=.*: expected a trigger such as MaxEpoch\(5\)"):
        TrainConfig(end_when=value)


def test_the_docstring_of_the_trainer_has_all_options():
    listed = re.findall(r"``(\w+)``", Trainer.__doc__)
    assert {field.name for field in fields(TrainConfig)} - set(listed) == set()


def test_options_are_named_and_fixed():
    with pytest.raises(TypeError):
        TrainConfig(32)
    with pytest.raises(FrozenInstanceError):
        TrainConfig().seed = 1
