"""Nowcast rain: a ConvLSTM forecasts the next radar images from the last ones.

    python examples/nowcasting_convlstm.py --master 'local[2]'

Spark's tasks generate the sequences: showers that move with the wind, grow, and fade. What the network must
beat is persistence, the forecast that the last image stays as it is: the ratio of mean squared errors says
how far it does, the critical success index (CSI: hits over hits, misses and false alarms) how much of the
rain is found where it falls.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import Tensor, nn

from sparkdl import Column, Dataset, Trainer, session
from sparkdl.nn import ConvLSTM
from sparkdl.train import MaxEpoch

SIDE, PAST, FUTURE = 32, 5, 5
SHAPES = {"past": (PAST, 1, SIDE, SIDE), "future": (FUTURE, 1, SIDE, SIDE)}
RAIN = 0.3  # what counts as rain, on a scale from 0 to 1


def radar_sequence(generator: np.random.Generator) -> NDArray[np.uint8]:
    """Return images of some showers, shape (time, height, width), 255 for the strongest rain.

    All move with one wind, each with a deviation of its own; their size and strength grow or fade.
    """
    y, x = np.mgrid[:SIDE, :SIDE]
    time = np.arange(PAST + FUTURE)[:, None, None]
    wind = generator.normal(0, 1.5, 2)
    rain = np.zeros((PAST + FUTURE, SIDE, SIDE))
    for _ in range(generator.integers(2, 6)):
        centre = generator.uniform(0, SIDE, 2) + time[..., None] * (wind + generator.normal(0, 0.3, 2))
        radius = generator.uniform(2, 5) * np.exp(generator.normal(0, 0.06) * time)
        strength = generator.uniform(0.4, 1) * np.exp(generator.normal(0, 0.06) * time)
        squared = (y - centre[..., 0]) ** 2 + (x - centre[..., 1]) ** 2
        rain = rain + strength * np.exp(-squared / (2 * radius**2))
    return (rain.clip(0, 1) * 255).astype(np.uint8)


def generate(spark: SparkSession, rows: int, seed: int) -> DataFrame:
    """Return sequences as rows of past and future, bytes of the shapes in ``SHAPES``.

    Each row has a random generator of its own: how Spark cuts the rows into tasks does not matter.
    """

    def draw(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            drawn = [radar_sequence(np.random.default_rng([seed, number])) for number in batch["id"]]
            past = [images[:PAST].tobytes() for images in drawn]
            future = [images[PAST:].tobytes() for images in drawn]
            yield pd.DataFrame({"past": past, "future": future})

    return spark.range(rows).mapInPandas(draw, "past binary, future binary")


def scale(images: Tensor) -> Tensor:
    """Bring bytes to a scale from 0 to 1."""
    return images.float() / 255


def loss(output: Tensor, future: Tensor) -> Tensor:
    """Return the cross-entropy of each sequence: the paper's loss, with rain as a probability."""
    losses = nn.functional.binary_cross_entropy_with_logits(output, scale(future), reduction="none")
    return losses.flatten(1).mean(1)


def scorer(module: nn.Module) -> Callable[[Iterable[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """Return the function with which Spark's tasks score forecasts: sums over their rows."""
    module.eval()

    def images(column: pd.Series, shape: tuple[int, ...]) -> Tensor:
        values = np.frombuffer(bytearray(b"".join(column)), np.uint8)
        return scale(torch.from_numpy(values.reshape(-1, *shape)))

    def score(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            past, future = (images(batch[name], shape) for name, shape in SHAPES.items())
            with torch.no_grad():
                forecast = torch.sigmoid(module(past))
            last = past[:, -1:].expand_as(future)
            sums = {"error": (forecast - future).square(), "persistence": (last - future).square()}
            for name, guess in (("", forecast), ("last_", last)):
                sums[f"{name}hits"] = (guess > RAIN) & (future > RAIN)
                sums[f"{name}either"] = (guess > RAIN) | (future > RAIN)
            yield pd.DataFrame({name: [float(values.sum())] for name, values in sums.items()})

    return score


def main() -> None:
    parser = argparse.ArgumentParser(description="Nowcast generated rain with a ConvLSTM and Spark.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--rows", type=int, default=400, help="sequences to train on; a quarter to test with")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--hidden", type=int, nargs="+", default=[16, 16], help="channels of each layer")
    parser.add_argument("--batch-size", type=int, default=16, help="rows per iteration, over all executors")
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="nowcasting").getOrCreate()
    train = generate(spark, args.rows, seed=args.seed)
    test = generate(spark, -(-args.rows // 4), seed=args.seed + 1)

    data = Dataset.from_dataframe(
        train,
        features=Column("past", SHAPES["past"], "uint8"),
        label=Column("future", SHAPES["future"], "uint8"),
        transform=scale,
    )
    torch.manual_seed(args.seed)  # for the initial weights
    trainer = Trainer(
        ConvLSTM(hidden=args.hidden, steps=FUTURE, kernel=3),
        loss=loss,
        optimizer=partial(torch.optim.Adam, lr=args.learning_rate),
        batch_size=args.batch_size,
        seed=args.seed,
        end_when=MaxEpoch(args.epochs),
        name="nowcasting",
    )
    with data:
        result = trainer.fit(data)

    names = ("error", "persistence", "hits", "either", "last_hits", "last_either")
    sums = test.mapInPandas(scorer(result.module), ", ".join(f"{name} double" for name in names))
    found = sums.agg(*(F.sum(name).alias(name) for name in names)).first()
    spark.stop()
    assert found is not None
    print(f"csi_of_persistence={found['last_hits'] / found['last_either']:.4f}")
    print(f"csi={found['hits'] / found['either']:.4f}")
    print(f"mse_ratio_to_persistence={found['error'] / found['persistence']:.4f}")


if __name__ == "__main__":
    main()
