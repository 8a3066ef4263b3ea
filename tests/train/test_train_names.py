"""Every option and Param is suggested for a misspelling of its name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import mlp
from torch import nn

from sparkdl import Trainer
from sparkdl.exceptions import ConfigError
from sparkdl.ml import TorchClassifier, TorchEstimator, TorchRegressor
from sparkdl.ml.params.attributes import ATTRIBUTES
from sparkdl.train.given import _ARGUMENTS
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.options.names import OF_ESTIMATORS, OF_TRAINER, meant

OPTIONS = (*_ARGUMENTS, *TrainConfig.__slots__)
ESTIMATORS = (TorchClassifier, TorchRegressor, TorchEstimator)


def misspelt(name: str, known: tuple[str, ...]) -> list[str]:
    """Return the name with a letter left out, two that changed places, and in the other libraries' style."""
    middle = len(name) // 2
    camel = "".join(part.title() if n else part for n, part in enumerate(name.split("_")))
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    swapped = name[: middle - 1] + name[middle] + name[middle - 1] + name[middle + 1 :]
    wrong = [name[:middle] + name[middle + 1 :], swapped, camel, snake]
    return [text for text in wrong if text not in known]


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_is_suggested_for_its_misspellings(name: str) -> None:
    for wrong in misspelt(name, OPTIONS):
        assert meant(wrong, 1, OPTIONS, OF_TRAINER) == f" (did you mean {name}?)", wrong


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_each_param_is_suggested_for_its_misspellings(kind: Any) -> None:
    known = (*ATTRIBUTES, *(param.name for param in kind().params))
    for name in known:
        for wrong in misspelt(name, known):
            if wrong.replace("_", "").lower() not in OF_ESTIMATORS:
                assert meant(wrong, 1, known, OF_ESTIMATORS) == f" (did you mean {name}?)", wrong


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"epochs": 5},
            r"unknown option epochs \(epochs=5 is end_when=MaxEpoch\(5\) here\); expected one of",
        ),
        ({"maxEpoch": 5}, r"maxEpoch \(maxEpoch=5 is end_when=MaxEpoch\(5\) here\)"),
        ({"max_steps": 9}, r"\(max_steps=9 is end_when=MaxIteration\(9\) here\)"),
        ({"lr": 0.1}, r"\(lr=0.1 is optimizer=partial\(torch.optim.Adam, lr=0.1\) here\)"),
        ({"optimzer": torch.optim.SGD}, r"optimzer \(did you mean optimizer\?\); .* loss, step, optimizer, "),
        ({"qqq": 1, "seeed": 2}, r"unknown option qqq, seeed \(did you mean seed\?\); expected"),
    ],
)
def test_a_trainer_says_what_is_meant(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer(mlp(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD, **options)


def test_what_is_set_for_good_is_said_to_be() -> None:
    trainer = Trainer(mlp(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    with pytest.raises(ConfigError, match="option loss .set for good when a Trainer is made"):
        trainer.with_options(loss=nn.MSELoss())
    for config in ({}, {"batch_size": 5}):
        with pytest.raises(ConfigError, match=r"^config=\{.*expected a TrainConfig"):
            Trainer(mlp(), loss=nn.MSELoss(), optimizer=torch.optim.SGD, config=config)  # type: ignore[arg-type]


def test_an_estimator_says_what_is_meant() -> None:
    wrong: Any = {"epochs": 5}
    with pytest.raises(TypeError, match=r"no parameter 'epochs' \(epochs=5 is maxEpochs=5 here\)"):
        TorchClassifier(**wrong)
    wrong = {"batch_size": 5}
    with pytest.raises(TypeError, match=r"no parameter 'batch_size' \(did you mean batchSize\?\)"):
        TorchRegressor(**wrong)
