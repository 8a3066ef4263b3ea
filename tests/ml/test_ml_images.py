"""Images in DataFrames: Spark's two sources, Datasets, pipelines, streams, a training."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import SQLTransformer, StringIndexer
from pyspark.sql import functions as F
from torch import nn

from sparkdl import Column, Dataset, Trainer
from sparkdl.data.augment import Normalize, RandomCrop, RandomFlip
from sparkdl.data.images import ImageFormat
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml.stages.images import ImageToTensor
from sparkdl.train import MaxEpoch, MaxIteration

FOLDER = r"([^/]+)/[^/]+$"


def draw(folder: Path, rows: int, seed: int) -> None:
    """Write rings and crosses of random places, sizes and colours, as PNG and JPEG."""
    rng = np.random.default_rng(seed)

    def colour(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(c) for c in rng.integers(low, high, 3))

    for row in range(rows):
        kind = ("cross", "ring")[row % 2]
        width, height = (int(n) for n in rng.integers(40, 64, 2))
        image = Image.new("RGB", (width, height), colour(0, 90))
        pen, ink, side = ImageDraw.Draw(image), colour(130, 256), int(rng.integers(24, 36))
        x, y = int(rng.integers(0, width - side)), int(rng.integers(0, height - side))
        if kind == "ring":
            pen.ellipse((x, y, x + side, y + side), outline=ink, width=5)
        else:
            pen.line((x, y, x + side, y + side), fill=ink, width=5)
            pen.line((x, y + side, x + side, y), fill=ink, width=5)
        (folder / kind).mkdir(parents=True, exist_ok=True)
        image.save(folder / kind / f"{row:03}.{'png' if row % 4 < 2 else 'jpg'}")


def read(spark: Any, folder: Path) -> Any:
    df = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(str(folder))
    return df.withColumn("kind", F.regexp_extract("path", FOLDER, 1))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    draw(folder, 12, seed=0)
    return folder


@pytest.fixture
def broken(spark: Any) -> Any:
    """An image, nothing, and no image."""
    file = io.BytesIO()
    Image.new("RGB", (5, 5), (255, 0, 0)).save(file, "PNG")
    rows = [(0, file.getvalue(), "/a.png"), (1, None, "/b.png"), (2, b"no image", "/c.png")]
    return spark.createDataFrame(rows, "id int, content binary, path string").coalesce(1)


def arrays(df: Any, column: str, wanted: ImageFormat) -> list[Any]:
    return [np.frombuffer(row[column], wanted.dtype).reshape(wanted.shape) for row in df.collect()]


def test_files_become_what_the_format_says(spark: Any, drawn: Path) -> None:
    stage = ImageToTensor(
        inputCol="content", outputCol="x", size=[24, 32], mode="crop", mean=[0.5] * 3, std=[0.25] * 3
    )
    df = stage.transform(read(spark, drawn))
    assert df.columns == ["path", "modificationTime", "length", "content", "kind", "x"]
    assert df.schema["x"].metadata == {"sparkdl": {"shape": [3, 24, 32], "dtype": "float32"}}
    rows = df.orderBy("path")
    for row, found in zip(rows.collect(), arrays(rows, "x", stage.format), strict=True):
        path = row.path.removeprefix("file:")
        np.testing.assert_array_equal(found, stage.format.decode(Path(path).read_bytes()))


def test_both_of_sparks_sources_give_the_same(spark: Any, drawn: Path) -> None:
    stage = ImageToTensor(outputCol="x", size=20, dtype="uint8", layout="HWC")
    files = read(spark, drawn).filter("path like '%.png'")
    images = spark.read.format("image").option("recursiveFileLookup", "true").load(str(drawn))
    images = images.filter("image.origin like '%.png'").withColumn("path", F.col("image.origin"))
    results = [
        arrays(stage.setInputCol(name).transform(df).orderBy("path"), "x", stage.format)
        for name, df in (("content", files), ("image", images))
    ]
    assert len(results[0]) == 6
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_dataset_finds_shape_and_dtype_by_itself(
    spark: Any, drawn: Path, tmp_path: Path, dtype: str
) -> None:
    stage = ImageToTensor(inputCol="content", outputCol="x", size=(8, 6), dtype=dtype)
    df = stage.transform(read(spark, drawn)).filter("length > 0").select("x", "kind")
    expected = arrays(df.limit(2), "x", stage.format)
    df.write.parquet(str(tmp_path / "kept"))
    again = spark.read.parquet(str(tmp_path / "kept"))
    for kept in (df, again):
        assert kept.schema["x"].metadata["sparkdl"]["shape"] == [3, 8, 6]
    with Dataset.from_dataframe(df, features="x") as data:
        found = data.peek()["features"]
        assert len(data) == 12
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)
    flat = Dataset.from_dataframe(df, features=Column("x", shape=(144,)))
    np.testing.assert_array_equal(flat.peek()["features"], found.reshape(2, 144))


# -- invalid images -----------------------------------------------------------------------------


def test_an_error_names_the_path(broken: Any) -> None:
    stage = ImageToTensor(inputCol="content", outputCol="x", size=4)
    with pytest.raises(Exception, match=r"DataError: column 'content', /b.png: null; handleInvalid='skip'"):
        stage.transform(broken).collect()
    with pytest.raises(Exception, match=r"column 'content', /c.png: 8 bytes that are no readable image"):
        stage.transform(broken.filter("id <> 1")).collect()
    with pytest.raises(Exception, match="column 'content', row 1 of partition 0: null"):
        stage.setPathCol("name").transform(broken).collect()


def test_skip_and_keep(broken: Any) -> None:
    stage = ImageToTensor(inputCol="content", outputCol="x", size=4, handleInvalid="skip")
    skipped = stage.transform(broken)
    assert [row.id for row in skipped.collect()] == [0]
    assert skipped.count() == 1
    assert "sparkdl" in skipped.schema["x"].metadata
    kept = stage.setHandleInvalid("keep").transform(broken).collect()
    assert [(row.id, row.x is None) for row in kept] == [(0, False), (1, True), (2, True)]
    with pytest.raises(DataError, match="row 1 of input partition 0: null; drop or fill"):
        Dataset.from_dataframe(stage.transform(broken), features="x").peek()


def test_skipped_images_are_decoded_once(spark: Any, broken: Any) -> None:
    stage = ImageToTensor(inputCol="content", outputCol="x", size=4, handleInvalid="skip")
    plan = stage.transform(broken).groupBy("x").count()._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("BatchEvalPython") == 1


def test_an_image_that_spark_could_not_decode(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    images = spark.read.format("image").load(str(tmp_path))
    stage = ImageToTensor(inputCol="image", outputCol="x", size=4)
    with pytest.raises(
        Exception, match=r"column 'image', file:/.*/bad.png: Spark could not decode the image"
    ):
        stage.transform(images).collect()
    missing = images.select(F.when(F.lit(False), F.col("image")).alias("image"))
    assert stage.setHandleInvalid("keep").transform(missing).first().x is None


def test_no_rows(broken: Any) -> None:
    stage = ImageToTensor(inputCol="content", outputCol="x", size=4)
    assert stage.transform(broken.filter("id > 5")).collect() == []


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"size": 4}, ConfigError, "ImageToTensor: inputCol is not set"),
        ({"inputCol": "content"}, ConfigError, "ImageToTensor: size is not set"),
        (
            {"inputCol": "contents", "size": 4},
            DataError,
            "inputCol 'contents' is not in the DataFrame; it has",
        ),
        ({"inputCol": "path", "size": 4}, DataError, "inputCol 'path' has type string: expected binary"),
        (
            {"inputCol": "content", "size": 4, "outputCol": "id"},
            DataError,
            "outputCol 'id' is in the DataFrame",
        ),
        ({"inputCol": "content", "size": [4]}, ConfigError, r"size=\(4,\)"),
        ({"inputCol": "content", "size": 4, "mean": [0.5]}, ConfigError, "expected 3 finite numbers"),
    ],
)
def test_params_that_do_not_fit(broken: Any, params: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ImageToTensor(**params).transform(broken)


@pytest.mark.parametrize("name", ["mode", "dtype", "layout", "handleInvalid"])
def test_choices_are_checked_when_set(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}='x': expected "):
        ImageToTensor(**{name: "x"})


# -- Params and persistence ---------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "inputCol": "content",
    "outputCol": "x",
    "size": [4, 6],
    "mode": "crop",
    "shorterSide": 8,
    "channels": 1,
    "mean": [0.5],
    "std": [0.25],
    "dtype": "float32",
    "layout": "HWC",
    "pathCol": "where",
    "handleInvalid": "keep",
}


def by_name(stage: Any) -> dict[str, Any]:
    return {param.name: value for param, value in stage.extractParamMap().items()}


def test_every_param_is_set_read_explained_and_kept(spark: Any, tmp_path: Path) -> None:
    stage = ImageToTensor()
    assert {param.name for param in stage.params} == set(VALUES)
    for name, value in VALUES.items():
        capital = name[0].upper() + name[1:]
        assert getattr(stage, f"set{capital}")(value) is stage
        assert getattr(stage, f"get{capital}")() == value
        assert name in stage.explainParams()
    assert by_name(ImageToTensor(**VALUES)) == by_name(stage) == VALUES
    assert ImageToTensor().setParams(**VALUES).getSize() == [4, 6]
    copy = stage.copy({stage.size: [9, 9]})
    assert (copy.getSize(), stage.getSize(), copy.uid) == ([9, 9], [4, 6], stage.uid)
    path = str(tmp_path / "stage")
    stage.save(path)
    again = ImageToTensor.load(path)
    assert again.uid == stage.uid
    assert again.extractParamMap() == stage.extractParamMap()
    assert (
        again.format == stage.format == ImageFormat((4, 6), "crop", 8, 1, (0.5,), (0.25,), "float32", "HWC")
    )
    ImageToTensor(size=3).write().overwrite().save(path)
    assert ImageToTensor.load(path).getSize() == [3, 3]


@pytest.mark.whole
def test_in_a_saved_pipeline(spark: Any, drawn: Path, tmp_path: Path) -> None:
    df = read(spark, drawn)
    stages = [
        StringIndexer(inputCol="kind", outputCol="label"),
        ImageToTensor(inputCol="content", outputCol="x", size=4, dtype="uint8"),
        SQLTransformer(statement="SELECT path, label, x FROM __THIS__"),
    ]
    Pipeline(stages=stages).save(str(tmp_path / "pipeline"))
    model = Pipeline.load(str(tmp_path / "pipeline")).fit(df)
    model.save(str(tmp_path / "model"))
    again = PipelineModel.load(str(tmp_path / "model"))
    assert again.transform(df).orderBy("path").collect() == model.transform(df).orderBy("path").collect()


@pytest.mark.whole
def test_on_a_stream(spark: Any, drawn: Path, tmp_path: Path) -> None:
    schema = spark.read.format("binaryFile").load(str(drawn)).schema
    stream = spark.readStream.format("binaryFile").schema(schema)
    stream = stream.option("recursiveFileLookup", "true").load(str(drawn))
    stage = ImageToTensor(inputCol="content", outputCol="x", size=4, handleInvalid="skip")
    query = (
        stage.transform(stream)
        .select("path", "x")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    written = spark.read.parquet(str(tmp_path / "out")).orderBy("path").collect()
    assert written == stage.transform(read(spark, drawn)).select("path", "x").orderBy("path").collect()


# -- training -----------------------------------------------------------------------------------


class Shapes(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 12, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24 * 9, 2),
        )


@pytest.mark.whole
def test_a_folder_of_images_is_learnt(spark: Any, tmp_path: Path) -> None:
    draw(tmp_path / "train", 200, seed=1)
    draw(tmp_path / "test", 100, seed=2)
    prepare = Pipeline(
        stages=[
            StringIndexer(inputCol="kind", outputCol="label", stringOrderType="alphabetAsc"),
            ImageToTensor(inputCol="content", outputCol="image", size=24, dtype="uint8"),
        ]
    )
    train = read(spark, tmp_path / "train")
    model = prepare.fit(train)
    normalize = Normalize([0.4] * 3, [0.25] * 3)
    data = Dataset.from_dataframe(
        model.transform(train),
        features="image",
        label=Column("label", dtype="int64"),
        num_partitions=2,
        transform=nn.Sequential(RandomCrop(padding=2), RandomFlip(), normalize),
    )

    def fit(end: Any) -> nn.Module:
        torch.manual_seed(0)
        trainer = Trainer(
            Shapes(),
            loss=nn.CrossEntropyLoss(),
            optimizer=partial(torch.optim.Adam, lr=0.005),
            batch_size=40,
            end_when=end,
            seed=3,
            progress=False,
        )
        module: nn.Module = trainer.fit(data).module
        return module.eval()

    with data:
        short, again = fit(MaxIteration(2)), fit(MaxIteration(2))
        module = fit(MaxEpoch(10))
    for name, value in short.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])  # augmentation is a matter of the seed
    rows = model.transform(read(spark, tmp_path / "test")).collect()
    images = np.stack([np.frombuffer(row.image, np.uint8).reshape(3, 24, 24) for row in rows])
    with torch.no_grad():
        predicted = module(normalize(torch.from_numpy(images))).argmax(1)
    accuracy = (predicted == torch.tensor([int(row.label) for row in rows])).double().mean()
    assert accuracy > 0.9
