from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
import uuid
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder
from pyspark.ml.util import MLWritable
from support.models import Everything
from torch import Tensor, nn

import sparkdl.ml
from sparkdl.access.models import ClassicModels
from sparkdl.exceptions import ConfigError, SerializationError
from sparkdl.ml import (
    TorchClassificationModel,
    TorchClassifier,
    TorchEstimator,
    TorchModel,
    TorchRegressionModel,
    TorchRegressor,
)
from sparkdl.ml.persistence import replacing
from sparkdl.ml.persistence import saving as persistence
from sparkdl.ml.persistence.saving import allow_pickle, save
from sparkdl.nn.models.lenet import LeNet5
from sparkdl.optim.clip import ClipByNorm
from sparkdl.serve import Predictor

FORMAT_1, FORMAT_2 = (Path(__file__).parents[1] / "fixtures" / name for name in ("format_1", "format_2"))


def model(seed: int = 0, cls: Any = TorchModel, **params: Any) -> Any:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return cls.from_module(module, example=np.zeros((2, 4), np.float32), **params)


def assert_same_weights(mine: nn.Module, theirs: nn.Module) -> None:
    expected, found = mine.state_dict(), theirs.state_dict()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert value.dtype is found[name].dtype, name
        assert torch.equal(value, found[name]), name


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# -- models and estimators alone --------------------------------------------------------------------


@pytest.mark.parametrize("cls", [TorchModel, TorchClassificationModel, TorchRegressionModel])
def test_models_come_back(spark: Any, tmp_path: Path, monkeypatch: Any, cls: Any) -> None:
    monkeypatch.setattr(ClassicModels, "in_small_tasks", raising)  # small ones need no Python process
    path = str(tmp_path / "model")
    saved = model(cls=cls, featuresCol="f", inferenceBatchSize=7)
    saved.module[0].weight.requires_grad_(False)
    saved.save(path)
    assert names(tmp_path) == ["model"]
    read = cls.load(path)
    assert type(read) is cls
    assert read.uid == saved.uid
    assert {p.name: v for p, v in read.extractParamMap().items()} == {
        p.name: v for p, v in saved.extractParamMap().items()
    }
    assert not read.isSet("predictionCol")
    assert (read.source, read.signature) == (saved.source, saved.signature)
    assert not read.module.training
    assert not read.module[0].weight.requires_grad
    assert_same_weights(saved.module, read.module)
    if cls is TorchModel:
        read.save(str(tmp_path / "again"))
        assert_same_weights(saved.module, cls.load(str(tmp_path / "again")).module)


def test_tied_weights_dtypes_and_buffers_in_small_pieces(
    spark: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(persistence, "_CHUNK_BYTES", 2500)
    monkeypatch.setattr(persistence, "_GROUP_BYTES", 7000)
    module = Everything()
    module.head.double()
    path = tmp_path / "model"
    TorchModel.from_module(module).save(str(path))
    assert len(list((path / "weights").glob("part-*.parquet"))) > 2
    read = TorchModel.load(str(path), trust=[Everything]).module
    assert_same_weights(module, read)
    assert read.tied_a.weight is read.tied_b.weight
    assert not read.frozen.weight.requires_grad
    assert_same_weights(module, Predictor.load(str(path), trust=[Everything])._module)


def test_estimators_come_back(spark: Any, tmp_path: Path) -> None:
    saved = TorchClassifier(
        module=LeNet5,
        loss=nn.CrossEntropyLoss(label_smoothing=0.1),
        optimizer=partial(torch.optim.SGD, lr=0.5),
        schedule=partial(torch.optim.lr_scheduler.StepLR, step_size=2),
        clip=ClipByNorm(2.0),
        options={"channels_last": True},
        maxEpochs=3,
    ).setHyper("optimizer", momentum=0.9)
    saved.save(str(tmp_path / "estimator"))
    read = TorchClassifier.load(str(tmp_path / "estimator"))
    assert read.uid == saved.uid
    assert read.module is LeNet5
    assert read.loss.label_smoothing == 0.1
    assert (read.optimizer.func, read.optimizer.keywords) == (torch.optim.SGD, {"lr": 0.5})
    assert read.schedule.keywords == {"step_size": 2}
    assert (read.clip, read.options) == (ClipByNorm(2.0), {"channels_last": True})
    assert (read.getMaxEpochs(), read.getHyper("optimizer")) == (3, {"momentum": 0.9})


def test_params_that_are_none_come_back(spark: Any, tmp_path: Path) -> None:
    saved = TorchClassifier(weightCol=None, maxIter=None, thresholds=None, featuresCols=None)
    saved.setHyper(limit=None).save(str(tmp_path / "estimator"))
    read = TorchClassifier.load(str(tmp_path / "estimator"))
    assert {p.name: value for p, value in read.extractParamMap().items()} == {
        p.name: value for p, value in saved.extractParamMap().items()
    }
    model(cls=TorchClassificationModel, thresholds=None, featuresCols=None).save(str(tmp_path / "model"))
    assert TorchClassificationModel.load(str(tmp_path / "model")).featuresNames() == ["features"]
    assert Predictor.load(str(tmp_path / "model")).predict(np.zeros((2, 4), np.float32)).shape == (2, 3)


@pytest.mark.parametrize("cls", [TorchEstimator, TorchClassifier, TorchRegressor])
def test_estimators_keep_the_weights_of_a_built_module(spark: Any, tmp_path: Path, cls: Any) -> None:
    module = nn.Sequential(nn.Linear(4, 3))
    module[0].bias.requires_grad_(False)
    cls(module=module).save(str(tmp_path / "estimator"))
    read = cls.load(str(tmp_path / "estimator"))
    assert_same_weights(module, read.module)
    assert not read.module[0].bias.requires_grad
    assert read.loss is None


def test_paths(spark: Any, tmp_path: Path) -> None:
    saved = model()
    for path in (f"file:{tmp_path}/url", f"{tmp_path}/a b/é%20/", tmp_path / "object"):
        saved.save(path)  # type: ignore[arg-type]
        assert TorchModel.load(path).uid == saved.uid  # type: ignore[arg-type]
    assert names(tmp_path / "a b") == ["é%20"]


@pytest.mark.parametrize(("name", "other"), [("a[b]{x,y}back\\slash", "abxbackslash"), ("w*q?", "widequ")])
def test_paths_are_not_patterns(spark: Any, tmp_path: Path, monkeypatch: Any, name: str, other: str) -> None:
    """Spark's readers and Hadoop's globStatus expand what its writers take as it is."""
    monkeypatch.setattr(
        persistence, "_GROUP_BYTES", 400
    )  # appended to, so that more than one file is written
    model(4).save(str(tmp_path / other))
    for found in ("abxback\\slash", "abxbackslash", "widequ"):  # what the patterns would find
        (tmp_path / f".{found}.saving-0123" / "weights").mkdir(parents=True)
    saved = model(3)
    saved.save(str(tmp_path / name))
    assert_same_weights(saved.module, TorchModel.load(str(tmp_path / name)).module)
    assert_same_weights(saved.module, Predictor.load(str(tmp_path / name))._module)
    assert len(list(tmp_path.iterdir())) == 5
    with pytest.raises(ConfigError, match="nothing complete"):
        TorchModel.load(str(tmp_path / "[aw{q]*"))


@pytest.mark.parametrize("path", ["m[1]", "{a,b}", "*"])
def test_pipelines_are_not_loaded_from_patterns(path: str) -> None:
    """What sparkdl.ml.load looks at would not be what Spark loads then."""
    with pytest.raises(ConfigError, match="Spark reads pipelines from all that this is a pattern of"):
        sparkdl.ml.load(path)


@pytest.fixture
def remote(spark: Any, tmp_path: Path) -> str:
    """The URL under which a Hadoop file system that is not the default one shows ``tmp_path``."""
    table = f"t{uuid.uuid4().hex}"  # Hadoop keeps file systems by scheme and authority
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set(f"fs.viewfs.mounttable.{table}.link./data", f"file://{tmp_path}")
    return f"viewfs://{table}/data"


def test_models_on_another_file_system(remote: str, tmp_path: Path) -> None:
    path = f"{remote}/deep/model"
    model(1).save(path)
    with pytest.raises(ConfigError, match="exists"):
        model(2).save(path)
    saved = model(2)
    saved.write().overwrite().save(path)
    assert_same_weights(saved.module, TorchModel.load(path).module)
    assert names(tmp_path / "deep") == ["model"]
    with pytest.raises(ConfigError, match="nothing complete was saved there"):
        TorchModel.load(f"{remote}/nothing")


@pytest.mark.whole
def test_pipelines_on_another_file_system(remote: str, tmp_path: Path) -> None:
    assembler = VectorAssembler(inputCols=["a"], outputCol="features")
    Pipeline(stages=[assembler, TorchRegressor(maxEpochs=2)]).save(f"{remote}/pipeline")
    assert Pipeline.load(f"{remote}/pipeline").getStages()[1].getMaxEpochs() == 2
    path = f"{remote}/model"
    for seed in (1, 2):
        saved = PipelineModel([assembler, model(seed)])
        saved.write().overwrite().save(path)
        assert_same_weights(saved.stages[1].module, PipelineModel.load(path).stages[1].module)
    saved = PipelineModel([assembler, model(3)])
    save(saved, path, overwrite=True)
    assert_same_weights(saved.stages[1].module, PipelineModel.load(path).stages[1].module)
    assert names(tmp_path) == ["model", "pipeline"]


# -- inside of other estimators -------------------------------------------------------------------


def test_pipelines(spark: Any, tmp_path: Path) -> None:
    assembler = VectorAssembler(inputCols=["a"], outputCol="features")
    Pipeline(stages=[assembler, TorchRegressor(maxEpochs=2)]).save(str(tmp_path / "pipeline"))
    _, estimator = Pipeline.load(str(tmp_path / "pipeline")).getStages()
    assert isinstance(estimator, TorchRegressor)
    assert estimator.getMaxEpochs() == 2
    saved = model()
    PipelineModel([assembler, saved]).write().overwrite().save(str(tmp_path / "model"))
    _, read = PipelineModel.load(str(tmp_path / "model")).stages
    assert_same_weights(saved.module, read.module)


@pytest.mark.slow
def test_cross_validation(spark: Any, tmp_path: Path) -> None:
    est = TorchClassifier(module=LeNet5)
    grid = ParamGridBuilder().addGrid(est.hyper("classes"), [3, 4]).addGrid(est.maxEpochs, [1]).build()
    cv = CrossValidator(estimator=est, estimatorParamMaps=grid, evaluator=MulticlassClassificationEvaluator())
    cv.save(str(tmp_path / "cv"))
    read = CrossValidator.load(str(tmp_path / "cv"))
    assert read.getEstimator().module is LeNet5
    maps = [{param.name: value for param, value in m.items()} for m in read.getEstimatorParamMaps()]
    assert maps == [{"module.classes": n, "maxEpochs": 1} for n in (3, 4)]
    best, other = model(1, TorchClassificationModel), model(2, TorchClassificationModel)
    tuned = cv._copyValues(CrossValidatorModel(best, [0.5, 0.6], [[best, other]] * 3))
    tuned.save(str(tmp_path / "model"))
    found = CrossValidatorModel.load(str(tmp_path / "model"))
    assert_same_weights(best.module, found.bestModel.module)
    assert_same_weights(other.module, found.subModels[2][1].module)


# -- overwriting and interruption ---------------------------------------------------------------------


def test_what_exists_is_replaced_only_on_demand(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    first, second = model(1), model(2)
    first.save(path)
    with pytest.raises(ConfigError, match=r"exists: choose another, or .*overwrite\(\)"):
        second.save(path)
    assert TorchModel.load(path).uid == first.uid
    second.write().overwrite().save(path)
    assert_same_weights(second.module, TorchModel.load(path).module)
    assert names(tmp_path) == ["model"]


class Stop(BaseException):
    """Not an Exception, like KeyboardInterrupt."""


@pytest.mark.parametrize("place", ["local", "remote"])
def test_an_interrupted_save_leaves_the_previous_one(
    remote: str, tmp_path: Path, monkeypatch: Any, place: str
) -> None:
    local = tmp_path / "model"
    path = str(local) if place == "local" else f"{remote}/model"
    first, second = model(1), model(2)
    first.save(path)
    before = sorted(str(file.relative_to(local)) for file in local.rglob("*"))
    for when in ("weights", "metadata", "first rename", "second rename")[0 if place == "local" else 2 :]:
        with monkeypatch.context() as patch:
            interrupt(patch, when)
            with pytest.raises(Stop):
                second.write().overwrite().save(path)
        assert names(tmp_path) == ["model"], when
        assert sorted(str(file.relative_to(local)) for file in local.rglob("*")) == before, when
        assert_same_weights(first.module, TorchModel.load(path).module)
        assert Predictor.load(str(local))(np.zeros((1, 4))).shape == (1, 3)


def interrupt(patch: pytest.MonkeyPatch, when: str) -> None:
    """Let the next save stop at some point."""
    renames = iter([when == "first rename", when == "second rename"])
    original, write = replacing.HadoopFolders.rename, persistence._write

    def rename(self: Any, source: Any, target: Any) -> None:
        if next(renames, False):
            raise Stop
        original(self, source, target)

    def stopping(*args: Any) -> None:
        write(*args)
        if when == "weights":
            raise Stop

    patch.setattr(replacing.HadoopFolders, "rename", rename)
    patch.setattr(persistence, "_write", stopping)
    if when == "metadata":
        patch.setattr(persistence.DefaultParamsWriter, "_get_metadata_to_save", raising)


def raising(*_: Any, **__: Any) -> None:
    raise Stop


def test_a_crash_between_two_renames_leaves_the_previous_one(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    first, second = model(1), model(2)
    first.save(path)
    os.rename(path, tmp_path / ".model.previous")  # this is what kill -9 leaves
    (tmp_path / ".model.saving-0123" / "weights").mkdir(parents=True)
    assert TorchModel.load(path).uid == first.uid
    assert Predictor.load(path)(np.zeros((1, 4))).shape == (1, 3)
    with pytest.raises(ConfigError, match="exists"):
        second.save(path)
    second.write().overwrite().save(path)
    assert names(tmp_path) == ["model"]
    assert TorchModel.load(path).uid == second.uid


@pytest.mark.whole
def test_without_renames_there_is_one_model_at_every_moment(
    spark: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """As on Spark Connect; a save that stops before any of its writes leaves the old or the new one."""
    monkeypatch.setattr(ClassicModels, "folders", lambda self, path: None)
    path = str(tmp_path / "model")
    first, second = model(1), model(2)
    first.write().overwrite().save(path)  # where nothing is
    known = {first.uid, second.uid}
    count = itertools.count(1)
    writes = [persistence._empty, persistence._write, persistence.write_metadata]
    for stop in count:
        left = itertools.count(stop, -1)

        def stopping(write: Any, left: Any = left) -> Any:
            def run(*args: Any) -> None:
                if not next(left) - 1:
                    raise Stop
                write(*args)

            return run

        with monkeypatch.context() as patch:
            for write in writes:
                patch.setattr(persistence, write.__name__, stopping(write))
            try:
                second.write().overwrite().save(path)
                break
            except Stop:
                assert TorchModel.load(path).uid in known, stop
                assert Predictor.load(path)(np.zeros((1, 4))).shape == (1, 3)
    assert stop > 5
    assert_same_weights(second.module, TorchModel.load(path).module)
    with pytest.raises(ConfigError, match="exists: choose another"):
        first.save(path)


def test_pipelines_can_be_replaced_as_safely(spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    path = str(tmp_path / "model")
    first, second = PipelineModel([model(1)]), PipelineModel([model(2)])
    save(first, path)
    with pytest.raises(ConfigError, match="exists"):
        save(second, path)
    with monkeypatch.context() as patch:
        patch.setattr(persistence, "_write", raising)
        with pytest.raises(Stop):
            save(second, path, overwrite=True)
    assert PipelineModel.load(path).uid == first.uid
    save(second, path, overwrite=True)
    assert PipelineModel.load(path).uid == second.uid
    assert names(tmp_path) == ["model"]


# -- pickled code -----------------------------------------------------------------------------------


def local(scale: float = 2.0) -> nn.Module:
    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 3)
            self.scale = torch.tensor(scale)  # is not in the state_dict

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x) * self.scale

    return Local()


def test_a_pickled_module_needs_opting_in_at_both_ends(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    saved = TorchModel.from_module(local())
    with pytest.raises(
        ConfigError, match=r"module \(Local\) cannot be saved .*option\('pickle', 'true'\)\.save"
    ):
        saved.save(path)
    assert names(tmp_path) == []
    saved.write().option("pickle", "true").save(path)
    with pytest.raises(
        ConfigError, match=r"holds a pickle \(module\).*TorchModel\.read\(\)\.option\('pickle', 'true'\)"
    ):
        TorchModel.load(path)
    with pytest.raises(ConfigError, match="option pickle='yes': expected 'true' or 'false'"):
        TorchModel.read().option("pickle", "yes").load(path)
    read = TorchModel.read().option("pickle", True).load(path)
    x = torch.ones(2, 4)
    assert torch.equal(read.module(x), saved.module(x))


def test_a_pipeline_is_told_by_a_context(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    saved = PipelineModel([TorchModel.from_module(local())])
    with pytest.raises(ConfigError, match=r"inside of a pipeline with sparkdl\.ml\.allow_pickle\(\)"):
        saved.write().overwrite().save(path)
    with allow_pickle():
        saved.write().overwrite().save(path)
    with pytest.raises(ConfigError, match=r"allow_pickle\(\)"):
        PipelineModel.load(path)
    with allow_pickle():
        read = PipelineModel.load(path)
    assert_same_weights(saved.stages[0].module, read.stages[0].module)


def test_only_what_needs_it_is_pickled(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "estimator")
    offset = 3.0
    saved = TorchClassifier(module=LeNet5, loss=lambda output, label: output.mean() + offset)
    with pytest.raises(ConfigError, match=r"loss \(function\) cannot be saved .* is a lambda"):
        saved.save(path)
    saved.write().option("pickle", "true").save(path)
    (text,) = Path(path).glob("metadata/part-*")
    assert json.loads(text.read_text())["sparkdl"]["pickled"] == ["loss"]
    read = TorchClassifier.read().option("pickle", "true").load(path)
    assert read.loss(torch.ones(2), None) == 4
    assert read.module is LeNet5


def test_what_cannot_be_pickled_is_named(spark: Any, tmp_path: Path) -> None:
    module = local()
    module.lock = threading.Lock()
    saved = TorchClassifier(module=module)
    with pytest.raises(SerializationError, match=r"module cannot be pickled: TypeError"):
        saved.write().option("pickle", "true").save(str(tmp_path / "model"))
    assert names(tmp_path) == []


# -- what cannot be read --------------------------------------------------------------------------------


def test_errors_of_load(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing complete was saved there"):
        TorchModel.load(str(tmp_path / "nothing"))
    VectorAssembler(inputCols=["a"], outputCol="b").save(str(tmp_path / "assembler"))
    with pytest.raises(
        ConfigError, match=r"was not saved by sparkdl: it holds a org\.apache\.spark\.ml.*Assembler"
    ):
        TorchModel.load(str(tmp_path / "assembler"))
    model().save(str(tmp_path / "model"))
    with pytest.raises(
        ConfigError, match=r"holds a TorchModel, expected a TorchClassifier: TorchModel\.load"
    ):
        TorchClassifier.load(str(tmp_path / "model"))
    (text,) = (tmp_path / "model").glob("metadata/part-*")
    metadata = json.loads(text.read_text())
    for crc in text.parent.glob(".*.crc"):
        crc.unlink()
    metadata["sparkdl"] |= {"format": 4, "version": "9.1"}
    text.write_text(json.dumps(metadata))
    with pytest.raises(ConfigError, match=r"format 4, written by sparkdl 9\.1; .* install a newer one"):
        TorchModel.load(str(tmp_path / "model"))
    text.write_text("{")
    with pytest.raises(ConfigError, match="its metadata is not JSON"):
        TorchModel.load(str(tmp_path / "model"))


def test_a_model_without_its_metadata_is_not_complete(spark: Any, tmp_path: Path) -> None:
    model().save(str(tmp_path / "model"))
    for file in (tmp_path / "model" / "metadata").iterdir():
        file.unlink()
    (tmp_path / "model" / "metadata").rmdir()
    with pytest.raises(ConfigError, match="nothing complete"):
        TorchModel.load(str(tmp_path / "model"))


def test_other_failures_of_spark_are_not_taken_for_a_missing_model(spark: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be read.*No FileSystem for scheme"):
        TorchModel.load("nosuch://model")


# -- what is not what was saved --------------------------------------------------------------------------


def parquet_of(folder: Path) -> Path:
    """Return the file of a model's weights, without the checksum that Hadoop keeps beside it."""
    (file,) = folder.glob("weights/part-*.parquet")
    (folder / "weights" / f".{file.name}.crc").unlink()
    return file


def test_damage_is_told(spark: Any, tmp_path: Path) -> None:
    saved, path = model(), tmp_path / "model"
    saved.save(str(path))
    file = parquet_of(path)
    sound = file.read_bytes()
    weight = saved.module[3].weight.detach().numpy().tobytes()
    at = sound.index(weight)
    file.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
    for load in (TorchModel.load, Predictor.load):
        with pytest.raises(ConfigError, match="path='.*the weights are damaged: the checksum is"):
            load(str(path))
    for damaged in (sound[:-20], sound[: at + 9], b"", sound[:at] + b"\0" * 9 + sound[at:]):
        file.write_bytes(damaged)
        for load in (TorchModel.load, Predictor.load):
            with pytest.raises(ConfigError) as caught:
                load(str(path))
            assert caught.value.code in ("config-saved", "config-damaged")
            assert len(str(caught.value)) < 1000
    file.unlink()
    with pytest.raises(ConfigError, match="there are none|cannot be read"):
        TorchModel.load(str(path))


def test_damaged_metadata_is_told(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "model"
    model(featuresCol="f").save(str(path))
    (file,) = path.glob("metadata/part-*")
    for crc in path.glob("metadata/.*.crc"):
        crc.unlink()
    sound = file.read_text()
    for damaged in (
        sound.replace('"f"', '"g"'),
        sound.replace('"format":2', '"format":1'),
        sound[:-40],
        "[" * 100_000,
        "",
        sound.replace('"uid"', '"uie"'),
    ):
        assert damaged != sound
        file.write_text(damaged)
        with pytest.raises(ConfigError) as caught:
            TorchModel.load(str(path))
        assert caught.value.code in ("config-saved", "config-damaged")
    metadata = json.loads(sound)
    del metadata["sparkdl"]["sha256"]
    metadata["sparkdl"]["format"] = 1  # without checksums
    for name, value in (("paramMap", {"nothing": 1}), ("paramMap", 3), ("sparkVersion", None), ("uid", 3)):
        file.write_text(json.dumps({**metadata, name: value}))
        with pytest.raises(ConfigError, match="cannot be read"):
            TorchModel.load(str(path))
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="leads to /dev/zero|nothing complete was saved"):
        TorchModel.load(str(path))


def test_a_damaged_pickle_is_not_read(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "model"
    TorchModel.from_module(local()).write().option("pickle", "true").save(str(path))
    (file,) = path.glob("code/part-*.parquet")
    for crc in path.glob("code/.*.crc"):
        crc.unlink()
    data = file.read_bytes()
    at = data.index(b"weight")
    file.write_bytes(data[:at] + b"W" + data[at + 1 :])
    with pytest.raises(ConfigError, match="the pickled code is damaged"):
        TorchModel.read().option("pickle", "true").load(str(path))
    with pytest.raises(ConfigError, match="the pickled code is damaged"):
        Predictor.load(str(path), pickle=True)


# -- formats ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [FORMAT_1, FORMAT_2])
def test_all_formats_are_read(spark: Any, folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    pipeline_model = PipelineModel.load(str(folder / "pipeline_model"))
    models = {
        "classifier": TorchClassificationModel.load(str(folder / "classifier")),
        "regressor": TorchRegressionModel.load(str(folder / "regressor")),
        "pipeline_model": pipeline_model.stages[1],
    }
    for name, read in models.items():
        dtype = next(read.module.parameters()).dtype
        with torch.no_grad():
            found = read.module(torch.tensor(expected["x"]).to(dtype))
        np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-6)
        assert len(read.signature.outputs) == (name != "regressor")
    assert models["classifier"].getThresholds() == [0.2, 0.3, 0.5]
    assert not models["classifier"].module[0].weight.requires_grad
    assert next(models["regressor"].module.parameters()).dtype is torch.float16
    estimators = (
        TorchClassifier.load(str(folder / "estimator")),
        Pipeline.load(str(folder / "pipeline")).getStages()[1],
    )
    for read in estimators:
        assert read.module is LeNet5
        assert torch.equal(read.loss.weight, torch.tensor([1.0, 2.0]))
        assert read.optimizer.keywords == {"lr": 0.5, "momentum": 0.9}
        assert read.clip == ClipByNorm(2.0)
        assert (read.getMaxEpochs(), read.getFeaturesCol()) == (3, "image")
        assert (read.getInputShapes(), read.getHyper("optimizer")) == ([[1, 28, 28]], {"nesterov": True})


# -- elsewhere: with Spark Connect, in tests/e2e/test_connect.py ----------------------------------------


@pytest.mark.slow
def test_a_tensor_larger_than_2_gib(spark: Any, tmp_path: Path) -> None:
    module = nn.Embedding(5 * (1 << 16), 2048)  # 2.5 GiB
    module.weight.data.zero_()[:: 1 << 10] = 1.5
    try:
        TorchModel(module).save(str(tmp_path / "model"))
        assert_same_weights(module, TorchModel.load(str(tmp_path / "model")).module)
        assert_same_weights(module, Predictor.load(str(tmp_path / "model"))._module)
    finally:
        shutil.rmtree(tmp_path)  # pytest keeps its folders for a while


class Writer:
    """Notes where it has saved, and whether it would have replaced something."""

    def __init__(self, wrote: list[tuple[str, bool]]) -> None:
        self.wrote, self.replaces = wrote, False

    def overwrite(self) -> Writer:
        self.replaces = True
        return self

    def save(self, path: str) -> None:
        self.wrote.append((path, self.replaces))


@pytest.mark.parametrize(
    ("own", "taken", "overwrite", "expected"),
    [
        (True, True, False, "exists"),
        (False, True, False, "exists"),
        (True, True, True, True),  # our writers know how to replace without a rename
        (False, True, True, "cannot delete"),
        (True, False, False, False),
        (False, False, False, False),
        (False, False, True, False),
    ],
)
def test_where_folders_cannot_be_renamed_nothing_is_replaced_but_by_our_own_writers(
    monkeypatch: pytest.MonkeyPatch, own: bool, taken: bool, overwrite: bool, expected: bool | str
) -> None:
    there = {"class": "pyspark.ml.pipeline.PipelineModel"} if taken else None
    monkeypatch.setattr(persistence, "SparkSession", SimpleNamespace(active=lambda: None))
    monkeypatch.setattr(persistence, "models_in", lambda _: SimpleNamespace(folders=lambda _: None))
    monkeypatch.setattr(persistence, "read_metadata", lambda _, path: there)
    wrote: list[tuple[str, bool]] = []
    base = persistence.TorchWritable if own else MLWritable
    saved: Any = type("Saved", (base,), {"write": lambda self: Writer(wrote)})()
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            save(saved, "/models/one", overwrite=overwrite)
        assert not wrote
    else:
        save(saved, "/models/one", overwrite=overwrite)
        assert wrote == [("/models/one", expected)]
