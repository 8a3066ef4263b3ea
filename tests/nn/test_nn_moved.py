"""Files of earlier releases name code by places that it no longer has."""

from __future__ import annotations

import importlib
import io
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.ml.util import DefaultParamsReader
from torch import nn

import sparkdl.nn
from sparkdl.exceptions import ConfigError
from sparkdl.ml import TimeSeriesModel, TorchEstimator, TorchModel
from sparkdl.ml.persistence.saving import instance_of
from sparkdl.saved import content
from sparkdl.saved.allowlist import LISTED, NAMES
from sparkdl.saved.importing import find, path_of
from sparkdl.saved.moved import MOVED, RENAMED, current, current_class
from sparkdl.saved.source import ModuleSource, decode, encode
from sparkdl.saved.trust import LISTED_ONLY, Trust
from sparkdl.train.hooks.callbacks import EarlyStopping
from sparkdl.wire.codec import Int8

OLD = {now: before for before, now in MOVED.items()}
LISTED_ONCE = [
    (f"{OLD[module]}:{name}", f"{module}:{name}")
    for module, names in NAMES.items()
    if module in OLD
    for name in names
]


@pytest.mark.parametrize(("before", "now"), MOVED.items())
def test_an_old_import_finds_the_module_of_today(before: str, now: str) -> None:
    module = importlib.import_module(before)
    assert module is importlib.import_module(now)
    assert module.__spec__ is not None
    assert module.__spec__.name == module.__name__ == now


def test_no_file_is_at_an_old_place() -> None:
    package = Path(sparkdl.__file__).parent
    for before in MOVED:
        place = package.parent.joinpath(*before.split("."))
        assert not place.with_suffix(".py").exists(), before
        assert not (place / "__init__.py").exists(), before


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("sparkdl.ml.model.TorchModel", TorchModel),
        ("sparkdl.ml.series.TimeSeriesModel", TimeSeriesModel),
        ("sparkdl.ml.estimators.model.TorchModel", TorchModel),
    ],
)
def test_classes_in_metadata_of_earlier_releases_are_found_by_spark_and_by_us(before: str, now: type) -> None:
    assert current_class(before) == f"{now.__module__}.{now.__qualname__}"
    assert DefaultParamsReader._DefaultParamsReader__get_class(before) is now


def test_everything_of_ours_that_is_listed_is_there() -> None:
    """What is missing there can be neither saved nor loaded: a module that moves must move in the list."""
    for module, names in NAMES.items():
        if module.startswith("sparkdl."):
            for name in names:
                assert path_of(find(f"{module}:{name}")) == f"{module}:{name}"


@pytest.mark.parametrize(("before", "now"), LISTED_ONCE)
def test_both_names_are_read_and_the_new_one_is_written(before: str, now: str) -> None:
    assert now in LISTED
    assert before not in LISTED
    for path in (before, now):
        target = decode({"$import": path})
        assert path_of(target) == now
        assert encode(target) == {"$import": now}
        assert LISTED_ONLY.admits(path)


@pytest.mark.parametrize("name", sparkdl.nn.__all__)
def test_every_public_model_is_found_by_all_its_names(name: str) -> None:
    model = getattr(sparkdl.nn, name)
    now = path_of(model)
    module, _, qualname = now.partition(":")
    assert find(now, LISTED_ONLY) is model
    if module in OLD:  # others came later
        assert find(f"{OLD[module]}:{qualname}", LISTED_ONLY) is model


def test_a_description_is_built_and_written_anew() -> None:
    inner = {"$build": "sparkdl.nn.mlp:MLP", "arguments": {"inputs": 2, "outputs": 1}}
    value = {"path": "sparkdl.nn.source:sequential", "arguments": {"body": inner}}
    source = ModuleSource.from_json(value)
    assert isinstance(source.build(), nn.Sequential)
    assert source == ModuleSource.from_json(source.to_json())
    inner["$build"] = "sparkdl.nn.models.mlp:MLP"
    assert source.to_json() == {"path": "sparkdl.saved.source:sequential", "arguments": {"body": inner}}


def test_options_are_read_by_both_names() -> None:
    written = encode(Int8(block=64))
    assert written["$build"] == "sparkdl.wire.codec:Int8"
    assert decode(written) == decode({**written, "$build": "sparkdl.allreduce.codec:Int8"}) == Int8(block=64)


def test_a_name_that_the_caller_trusts_is_trusted_at_both_places() -> None:
    before, now = (f"sparkdl.nn.{home}:pairwise_step" for home in ("knrm", "models.knrm"))
    for path in (before, now):
        with pytest.raises(ConfigError, match="was not imported"):
            decode({"$import": path})
        for entry in (before, now):
            assert Trust.of(entry).admits(path)


@pytest.mark.parametrize(
    "path",
    [
        "sparkdl.nn.mlp:nn.Linear",
        "sparkdl.nn.source:import_module",
        "sparkdl.nn.source.x:sequential",
        "sparkdl.nn.parts:check_numbers",
        "sparkdl.nn.importing:find",
        "sparkdl.saved.importing:find",
        "sparkdl.saved.moved:current",
    ],
)
def test_an_old_name_lets_nothing_else_in(path: str) -> None:
    for value in ({"$import": path}, {"$partial": path, "positional": [], "arguments": {}}):
        with pytest.raises(ConfigError, match="was not imported"):
            decode(value)


def test_a_path_with_the_place_that_it_has_now() -> None:
    assert current("sparkdl.nn.resnet:ResNet") == "sparkdl.nn.models.resnet:ResNet"
    assert current("sparkdl.nn.models.resnet:ResNet") == "sparkdl.nn.models.resnet:ResNet"
    assert current("sparkdl.nn.resnets:ResNet") == "sparkdl.nn.resnets:ResNet"
    assert current("sparkdl.nn.resnet.x:ResNet") == "sparkdl.nn.resnet.x:ResNet"


def test_pickles_of_earlier_releases_are_read() -> None:
    values: dict[str, Any] = {
        "factory": sparkdl.nn.MLP,
        "source": ModuleSource("torch.nn:ReLU"),
        "hook": EarlyStopping,
    }
    before = text = pickle.dumps(values, 0)
    for place in ("sparkdl.nn.models.mlp", "sparkdl.saved.source", "sparkdl.train.hooks.callbacks"):
        assert place.encode() in before
        before = before.replace(place.encode(), OLD[place].encode())
    assert content._loads(before) == content._loads(text) == values


def test_a_pickled_module_with_an_embedding_variable_names_these_modules() -> None:
    """One that moves needs an entry in ``moved.py``; models of earlier releases cannot be read without it."""
    counters = sparkdl.nn.CountingBloom(100)
    module = nn.Sequential(sparkdl.nn.EmbeddingVariable(4, min_count=2, counters=counters))
    found = re.findall(rb"sparkdl[\w.]*\w", content._dumps({"module": module}, module))
    keyed = {f"sparkdl.keyed.{name}" for name in ("bloom", "columns", "slots", "store", "table")}
    assert {name.decode() for name in found} == {"sparkdl.nn.embedding", "sparkdl.wire.arrays", *keyed}


@pytest.mark.parametrize(("before", "now"), RENAMED.items())
def test_renamed_classes_are_found_by_both_names(before: str, now: str) -> None:
    assert path_of(find(before)) == path_of(find(now)) == now
    module, _, name = before.partition(":")
    assert content._Unpickler(io.BytesIO()).find_class(module, name) is find(now)


def test_options_of_saved_estimators_have_the_names_of_today() -> None:
    saved = content.Content(None, attributes={"options": {"num_slices": 2, "commit_every": 3}})
    assert instance_of(TorchEstimator, saved).options == {"num_shards": 2, "commit_every": 3}
