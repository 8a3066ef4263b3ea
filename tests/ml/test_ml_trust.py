"""Models and pipelines that name code which nobody trusts, through Spark ML."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from test_trust import FORMAT_1, fetching, naming, shell
from torch import Tensor, nn

import sparkdl.ml
from sparkdl.exceptions import ConfigError
from sparkdl.ml import ImageToTensor, TextIndexer, TextIndexerModel, TorchClassificationModel, TorchModel


class Own(nn.Module):
    """A module of the user's own package."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


def metadata_in(folder: Path) -> Path:
    """Return the file of a folder's metadata, without the checksum that Hadoop keeps of it."""
    (text,) = folder.glob("metadata/part-*")
    for crc in text.parent.glob(".*.crc"):
        crc.unlink()
    return text


def change(folder: Path, **values: Any) -> None:
    text = metadata_in(folder)
    text.write_text(json.dumps(json.loads(text.read_text()) | values))


@pytest.mark.parametrize(
    "which", [shell, pytest.param(lambda _: fetching(), marks=pytest.mark.whole)], ids=["shell", "url"]
)
def test_models_and_pipelines_run_no_commands(spark: Any, tmp_path: Path, which: Any) -> None:
    path = naming(tmp_path, which(tmp_path))
    with pytest.raises(ConfigError, match="a saved model may name; it was not imported"):
        TorchClassificationModel.load(path)
    with pytest.raises(ConfigError, match="it was not imported"):
        TorchClassificationModel.read().option("trust", "mypackage").load(path)
    shutil.rmtree(path)
    naming(tmp_path, which(tmp_path), "pipeline_model/stages/" + next_stage())
    pipeline = tmp_path / "pipeline"
    shutil.copytree(FORMAT_1 / "pipeline_model", pipeline)
    shutil.rmtree(pipeline / "stages" / next_stage())
    shutil.copytree(tmp_path / "model", pipeline / "stages" / next_stage())
    for load in (PipelineModel.load, sparkdl.ml.load):
        with pytest.raises(ConfigError, match="a saved model may name; it was not imported"):
            load(str(pipeline))
        with pytest.raises(ConfigError, match="it was not imported"), sparkdl.ml.trust("mypackage", Own):
            load(str(pipeline))
    assert not (tmp_path / "ran").exists()


def next_stage() -> str:
    (found,) = (FORMAT_1 / "pipeline_model" / "stages").glob("1_*")
    return found.name


@pytest.mark.whole
def test_the_users_own_modules_are_named_by_the_user(spark: Any, tmp_path: Path) -> None:
    alone, inside = str(tmp_path / "model"), str(tmp_path / "pipeline")
    model = TorchModel.from_module(Own())
    model.save(alone)
    PipelineModel([VectorAssembler(inputCols=["a"], outputCol="features"), model]).save(inside)
    with pytest.raises(ConfigError, match=r"trust=\['test_ml_trust'\]"):
        TorchModel.load(alone)
    for read in (
        TorchModel.load(alone, trust=[Own]),
        TorchModel.load(alone, trust="test_ml_trust"),
        TorchModel.read().option("trust", "other, test_ml_trust").load(alone),
    ):
        assert isinstance(read.module, Own)
    read.save(str(tmp_path / "again"))  # what was read can be written without more trust
    with pytest.raises(ConfigError, match=r"sparkdl\.ml\.trust\('test_ml_trust'\)"):
        PipelineModel.load(inside)
    with sparkdl.ml.trust(Own):
        assert isinstance(PipelineModel.load(inside).stages[1].module, Own)
        assert isinstance(sparkdl.ml.load(inside).stages[1].module, Own)
    assert isinstance(sparkdl.ml.load(inside, trust="test_ml_trust").stages[1].module, Own)
    with pytest.raises(ConfigError):
        PipelineModel.load(inside)
    with pytest.raises(ConfigError, match="Trust the one class"), sparkdl.ml.trust("os"):
        pass


def test_stages_are_looked_at_before_spark_imports_them(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evilmod.py").write_text("from pathlib import Path\nPath(__file__ + '.ran').touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "evilmod", raising=False)  # of other tests
    path = tmp_path / "pipeline"
    shutil.copytree(FORMAT_1 / "pipeline_model", path)
    assert isinstance(sparkdl.ml.load(str(path)), PipelineModel)
    first = next((path / "stages").glob("0_*"))
    for name in (
        "evilmod.Stage",
        "org.apache.sparkevil.ml.Stage",
        "os.system",
        "org.apache.spark.ml.feature.SQLTransformer",
        "sparkdl.ml.estimators.model.np",
        "evilmod",
    ):
        change(first, **{"class": name})
        with pytest.raises(ConfigError):
            sparkdl.ml.load(str(path))
    text = metadata_in(first)
    good = (FORMAT_1 / "pipeline_model" / "stages" / first.name).glob("metadata/part-*")
    line = next(good).read_text().strip()
    for bad in (
        line + '\n{"class": "evilmod.Stage"}',
        '{"class": "evilmod.Stage", ' + line[1:],
        "[1]",
        "{",
    ):
        text.write_text(bad)
        with pytest.raises(ConfigError):
            sparkdl.ml.load(str(path))
    text.write_text(line)
    (second,) = path.glob("stages/1_*")
    change(path, paramMap={"stageUids": ["a", "/../../elsewhere"], "language": "Python"})
    with pytest.raises(ConfigError, match="holds no metadata of Spark ML"):
        sparkdl.ml.load(str(path))
    assert second.exists()
    with pytest.raises(ConfigError, match="nothing complete was saved there"):
        sparkdl.ml.load(str(tmp_path / "nowhere"))
    assert "evilmod" not in sys.modules
    assert not (tmp_path / "evilmod.py.ran").exists()


def test_whole_estimators_and_single_models_load_as_well(spark: Any) -> None:
    assert isinstance(sparkdl.ml.load(str(FORMAT_1 / "classifier")), TorchClassificationModel)
    assert isinstance(sparkdl.ml.load(str(FORMAT_1 / "pipeline")), Pipeline)


def test_other_stages_do_not_import_what_their_files_name(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sparkdl.ml.persistence.stored")
    (tmp_path / "evilmod.py").write_text("from pathlib import Path\nPath(__file__ + '.ran').touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    stages = [TextIndexer(), TextIndexerModel.from_vocabulary(["<pad>", "<unk>"]), ImageToTensor()]
    for number, stage in enumerate(stages):
        path = tmp_path / str(number)
        stage.save(str(path))
        assert type(type(stage).load(str(path))) is type(stage)
        change(path, **{"class": "evilmod.Stage"})
        with pytest.raises(ConfigError, match="Stage"):
            type(stage).load(str(path))
    assert not (tmp_path / "evilmod.py.ran").exists()
