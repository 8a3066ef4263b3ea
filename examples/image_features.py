"""Find similar pictures: read, crop, extract features, hash and look for neighbours in one Spark program.

    pip install 'sparkdl[examples,images]' && pip install --no-deps scikit-image
    python examples/image_features.py --master 'local[2]'

The pipeline that JD.com runs over its product images, with the photographs of the package scikit-image: Spark
reads the files, its tasks cut them into tiles, a network turns each tile into features, and Spark ML's hashes
find tiles with similar ones. The network learns on half of the photographs to tell which of them a tile is
from; the others, which it has never seen, are searched. For each of their tiles the five nearest are looked
up: the score is the share of these that come from the same photograph.

On a cluster, ``--images`` must be a folder or URL that the executors can read, and they need Pillow.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from pyspark.ml.feature import BucketedRandomProjectionLSH
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from torch import Tensor, nn

from sparkdl import Column, Dataset, Trainer, session
from sparkdl.ml import TorchModel
from sparkdl.nn import ResNet
from sparkdl.train import MaxEpoch

TRAINED_ON = ("astronaut", "camera", "coins", "grass", "hubble_deep_field", "moon", "retina", "text")
SEARCHED = ("brick", "chelsea", "coffee", "color", "gravel", "ihc", "motorcycle_left", "rocket")
SIDE = 32
SHAPE = (3, SIDE, SIDE)


def folder_of_photographs() -> str:
    """Return where the package keeps its photographs, without importing it."""
    package = find_spec("skimage")
    if package is None or package.origin is None:
        raise SystemExit("the photographs come with scikit-image: pip install --no-deps scikit-image")
    return str(Path(package.origin).parent / "data")


def read_tiles(spark: SparkSession, folder: str) -> DataFrame:
    """Return tiles of all photographs: photograph, number of the tile, and RGB bytes of shape ``SHAPE``."""
    files = spark.read.format("binaryFile").load(folder)
    name = F.regexp_extract("path", r"([^/]+)\.(png|jpg)$", 1)
    files = files.select(name.alias("photograph"), "content")
    photographs = files.where(F.col("photograph").isin(*TRAINED_ON, *SEARCHED))
    return photographs.mapInPandas(cut, "photograph string, number int, tile binary")


def cut(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Cut photographs, at half their size, into tiles side by side; runs in Spark's tasks."""
    for batch in batches:
        for photograph, content in zip(batch["photograph"], batch["content"], strict=True):
            pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB").reduce(2))
            rows, columns = pixels.shape[0] // SIDE, pixels.shape[1] // SIDE
            tiles = pixels[: rows * SIDE, : columns * SIDE].reshape(rows, SIDE, columns, SIDE, 3)
            tiles = tiles.transpose(0, 2, 4, 1, 3).reshape(-1, *SHAPE)
            content_of_tiles = [tile.tobytes() for tile in tiles]
            yield pd.DataFrame(
                {"photograph": photograph, "number": range(len(tiles)), "tile": content_of_tiles}
            )


def scale(tiles: Tensor) -> Tensor:
    """Bring bytes to about mean 0 and deviation 1."""
    return tiles.float() / 64 - 2


def augment(tiles: Tensor) -> Tensor:
    """Scale tiles, and mirror half of them."""
    mirrored = torch.rand(len(tiles), 1, 1, 1) < 0.5
    return scale(torch.where(mirrored, tiles.flip(3), tiles))


class Features(nn.Module):
    """A ResNet without its last layer, for tiles of bytes; features have length 1."""

    def __init__(self, network: ResNet) -> None:
        super().__init__()
        self.network = network

    def forward(self, tiles: Tensor) -> Tensor:
        """Return the features of tiles."""
        return nn.functional.normalize(self.network.features(scale(tiles)))


def train_network(tiles: DataFrame, args: argparse.Namespace) -> ResNet:
    """Train a small ResNet to tell which photograph a tile is from."""
    classes = F.call_function("array_position", F.array(*map(F.lit, TRAINED_ON)), F.col("photograph")) - 1
    data = Dataset.from_dataframe(
        tiles.withColumn("label", classes),
        features=Column("tile", SHAPE, "uint8"),
        label="label",
        transform=augment,
    )
    torch.manual_seed(args.seed)  # for the initial weights
    trainer = Trainer(
        ResNet(18, classes=len(TRAINED_ON), width=16, small=True),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=args.learning_rate),
        batch_size=args.batch_size,
        seed=args.seed,
        end_when=MaxEpoch(args.epochs),
        name="photographs",
    )
    with data:
        network = trainer.fit(data).module
    assert isinstance(network, ResNet)
    return network


def neighbours(features: DataFrame, count: int, seed: int) -> DataFrame:
    """Return the nearest tiles of each tile: two photographs, and whether these are the same.

    Spark's hashes put vectors into buckets along random lines; pairs that share a bucket are compared.
    """
    hashes = BucketedRandomProjectionLSH(
        inputCol="vector", outputCol="hashes", bucketLength=0.5, numHashTables=4, seed=seed
    )
    model = hashes.fit(features)
    pairs = model.approxSimilarityJoin(features, features, threshold=2.0, distCol="distance")
    pairs = pairs.where("datasetA.id != datasetB.id")
    order = Window.partitionBy("datasetA.id").orderBy("distance", "datasetB.id")
    nearest = pairs.withColumn("rank", F.row_number().over(order)).where(F.col("rank") <= count)
    return nearest.selectExpr(
        "datasetA.photograph AS one",
        "datasetB.photograph AS other",
        "datasetA.photograph = datasetB.photograph AS same",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Find similar tiles of photographs with Spark.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--images", help="folder with the photographs; scikit-image's by default")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="rows per iteration, over all executors")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="image-features").getOrCreate()
    tiles = read_tiles(spark, args.images or folder_of_photographs()).cache()
    network = train_network(tiles.where(F.col("photograph").isin(*TRAINED_ON)), args)

    model = TorchModel.from_module(
        Features(network), featuresCol="tile", inputShapes=[list(SHAPE)], inputTypes="uint8"
    )
    model.setPredictionCol("features")
    searched = tiles.where(F.col("photograph").isin(*SEARCHED))
    searched = searched.withColumn("id", F.concat_ws("/", "photograph", "number"))
    features = model.transform(searched).withColumn("vector", array_to_vector(F.col("features"))).cache()

    sizes = [row["count"] for row in features.groupBy("photograph").count().collect()]
    chance = sum(size * (size - 1) for size in sizes) / (sum(sizes) * (sum(sizes) - 1))
    found = neighbours(features.select("id", "photograph", "vector"), 5, args.seed)
    score = found.agg(F.avg(F.col("same").cast("double"))).first()
    spark.stop()
    assert score is not None
    print(f"tiles={sum(sizes)} of {len(sizes)} photographs")
    print(f"same_image_by_chance={chance:.4f}")
    print(f"same_image_at_5={score[0]:.4f}")


if __name__ == "__main__":
    main()
