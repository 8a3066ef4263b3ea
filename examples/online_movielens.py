"""Learn from films as they are rated, and compare with models that are trained anew every night.

    python examples/online_movielens.py --master 'local[2]'
    python examples/online_movielens.py --master 'local[2]' --days 3 --begin 0.3 --epochs 1

MovieLens-100K in the order of time, where a rating counts as an event, whatever it says. Two towers learn the
first events (``--begin``, a share of all). Then each event is a question before it is a lesson: is its film
among the ten that the towers would offer, of all films that the user has not rated before?

- *online*: a stream of small files; the model learns each once when it has been asked, and is published.
  With each new event it learns many earlier ones again (``--replay``): a file has events of few users, and a
  model that learns these alone forgets the others.
- *nightly*: every night a new model learns all events so far, as often as the first one did.
- *frozen*: the first model, for ever.
- *popular*: the ten films with most events so far, counted anew with each file.

The ratings are an example file of the package recbole, which is not imported:
``pip install --no-deps recbole``. Only the driver needs it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparkdl import Column, Dataset, Trainer, session
from sparkdl.ml import TorchModel
from sparkdl.nn import TopK, TwoTower, in_batch_step
from sparkdl.online import OnlineTrainer, Publisher
from sparkdl.recsys import count_categories, with_category, with_hash, with_history
from sparkdl.serve import Predictor
from sparkdl.train import Checkpoint, MaxEpoch

PAST, BEST = 20, 10
DAY = 86_400
LAZY = partial(torch.optim.Adagrad, lr=0.1)
FEATURES: dict[str, str | Column] = {
    "item": Column("film", (2,)),
    "user": Column("person", (2,)),
    "history": Column("history", (PAST,)),
    "length": "length",
}
LABEL = Column("share", dtype="float32")


def read(name: str, columns: str) -> pd.DataFrame:
    """Return a file of MovieLens-100K."""
    package = find_spec("recbole")
    if package is None or package.origin is None:
        raise SystemExit("the ratings come with recbole: pip install --no-deps recbole")
    file = Path(package.origin).parent / "dataset_example" / "ml-100k" / f"ml-100k.{name}"
    return pd.read_csv(file, sep="\t", header=0, names=columns.split(), dtype=str, keep_default_na=False)


def read_events(spark: SparkSession, seed: int) -> DataFrame:
    """Return an event a row: when, who, which film, as ids, and the films of the user before."""
    events = read("inter", "user item rating time").astype({"time": "int64"})
    films = read("item", "item title year genres")[["item", "genres"]]
    people = read("user", "user age gender occupation zip")[["user", "occupation"]]
    table = spark.createDataFrame(events.merge(films, on="item").merge(people, on="user"))
    for name in ("item", "genres", "user", "occupation"):
        table = with_hash(table, f"{name}_id", name, salt=name)
    table = with_history(table, PAST, user="user_id", item="item_id", seed=seed)
    return table.select(
        *("user_id", "item_id", "time", "history", "length"),
        F.array("item_id", "genres_id").alias("film"),
        F.array("user_id", "occupation_id").alias("person"),
    )


class Questions:
    """Asks models for ten films before each event.

    Args:
        events: all events, in the order of time.
    """

    def __init__(self, events: pd.DataFrame) -> None:
        films = events.drop_duplicates("item_id").sort_values("item_id")
        self.films = torch.tensor(np.stack(films.film))
        self.ids = films.item_id.to_numpy()
        self._places = np.searchsorted(self.ids, events.item_id.to_numpy())
        self._users = events.user_id.to_numpy()
        self._number = {key: n for n, key in enumerate(zip(events.user_id, events.item_id, strict=True))}

    def hits(self, module: nn.Module, rows: pd.DataFrame) -> float:
        """Return how often the film of an event is among a model's ten best."""
        assert isinstance(module, TwoTower)
        module.eval()
        with torch.no_grad():
            people, history = (torch.tensor(np.stack(rows[name])) for name in ("person", "history"))
            users = module.user_tower(people, history, torch.tensor(rows["length"].to_numpy()))
            scores = users @ module.item_tower(self.films).T
        return self._found(scores, rows)

    def popular(self, counts: Counter[int], rows: pd.DataFrame) -> float:
        """Return how often it is among the ten that were taken most."""
        scores = torch.tensor([float(counts[place]) for place in range(len(self.ids))])
        return self._found(scores.repeat(len(rows), 1), rows)

    def _found(self, scores: torch.Tensor, rows: pd.DataFrame) -> float:
        wanted = torch.tensor(np.searchsorted(self.ids, rows.item_id.to_numpy()))
        for n, (user, item) in enumerate(zip(rows.user_id, rows.item_id, strict=True)):
            number = self._number[user, item]  # of a moment's events the order of the file counts
            before = self._places[:number][self._users[:number] == user]
            scores[n, before] = -torch.inf
        own = scores.gather(1, wanted.unsqueeze(1))
        return float(((scores >= own).sum(1) <= BEST).float().mean())  # films that tie count as better


def trainer_of(args: argparse.Namespace, *hooks: Any) -> Trainer:
    """Return a trainer of new towers."""
    torch.manual_seed(args.seed)
    return Trainer(
        TwoTower((None,) * 2, (None,) * 2, 32, (64,), 32, history=True, variables={"seed": args.seed}),
        step=in_batch_step,
        optimizer={"*tables*": LAZY, "*": partial(torch.optim.Adam, lr=2e-3)},
        batch_size=args.batch_size,
        seed=args.seed,
        end_when=MaxEpoch(args.epochs),
        hooks=hooks,
        progress=False,
    )


def fit(trainer: Trainer, events: DataFrame) -> nn.Module:
    """Learn events as they lie there."""
    with Dataset.from_dataframe(events, features=FEATURES, label=LABEL, num_partitions=2) as data:
        return trainer.fit(data).module


def search_of(module: nn.Module, questions: Questions) -> TorchModel:
    """Return the search among all films as a model that is published."""
    assert isinstance(module, TwoTower)
    module.eval()
    with torch.no_grad():
        vectors = module.item_tower(questions.films)
    search = TopK(module.user_tower, len(vectors), module.width, BEST)
    search.fill(torch.from_numpy(questions.ids), vectors)
    sizes = {"columns": (2,), "history": (PAST,), "length": ()}
    return TorchModel.from_module(
        search,
        example={name: np.zeros((2, *size), np.int64) for name, size in sizes.items()},
        featuresCols=["person", "history", "length"],
        inputNames=list(sizes),
        outputCols=["items", "scores"],
    )


def with_earlier(rows: DataFrame, number: int, events: str, replay: int) -> DataFrame:
    """Add earlier events to those of a file; which ones follows from the number of the file.

    Args:
        rows: events of the file.
        number: its number.
        events: folder with all events.
        replay: so many for each new one.
    """
    first, count = rows.agg(F.min("time"), F.count("*")).first()
    earlier = rows.sparkSession.read.parquet(events).where(F.col("time") < first)
    drawn = F.xxhash64("user_id", "item_id", "time", F.lit(number))
    return rows.unionByName(earlier.orderBy(drawn).limit(replay * count).select(rows.columns))


def learn_online(
    events: DataFrame, files: list[pd.DataFrame], warm: Path, questions: Questions, args: argparse.Namespace
) -> tuple[OnlineTrainer, float]:
    """Learn a stream of files; return the trainer, and how long it took."""
    source, folder = warm.parent / "source", warm.parent / "stream"
    source.mkdir()
    for number, part in enumerate(files):
        part.to_parquet(source / f"{number:05d}.parquet", index=False)
        time.sleep(0.01)  # Spark takes files in the order in which they were written
    schema = events.schema
    rows = events.sparkSession.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    publisher = Publisher(
        warm.parent / "models", partial(search_of, questions=questions), seconds=args.seconds
    )
    online = OnlineTrainer(
        trainer_of(args),
        folder,
        begin=warm,
        publisher=publisher,
        score=lambda module, batch: {"hit": questions.hits(module, batch.toPandas())},
        mix=partial(with_earlier, events=str(warm.parent / "events"), replay=args.replay),
    )
    begin = time.perf_counter()
    query = online.start(
        rows.parquet(str(source)),
        features=FEATURES,
        label=LABEL,
        num_partitions=2,
        trigger={"availableNow": True},
    )
    query.await_termination()
    error = query.exception()
    if error is not None:
        raise error
    return online, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description="Online learning of MovieLens-100K by time.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--begin", type=float, default=0.6, help="share of the events that come first")
    parser.add_argument("--days", type=int, default=21, help="nights after them")
    parser.add_argument("--file", type=int, default=64, help="events of a file of the stream, at most")
    parser.add_argument(
        "--replay", type=int, default=29, help="earlier events that are learned with a new one"
    )
    parser.add_argument("--epochs", type=int, default=3, help="of the first model, and of each nightly one")
    parser.add_argument("--seconds", type=float, default=20.0, help="between two versions")
    parser.add_argument("--batch-size", type=int, default=256, help="events per iteration")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="online-recommender").getOrCreate()
    events = read_events(spark, args.seed)
    split = int(events.count() * args.begin)
    times = events.select("time").orderBy("time").toPandas().time
    middle = int(times[split])
    first = events.where(F.col("time") < middle)
    shares = count_categories(first, "item_id")
    events = with_category(events, "item_id", shares, share="share")
    events = events.withColumn("share", F.greatest("share", F.lit(1e-5))).cache()
    table = events.orderBy("time", "user_id", "item_id").toPandas()
    questions = Questions(table)
    end = middle + args.days * DAY
    later = table[(table.time >= middle) & (table.time < end)]
    nights = [part for _, part in later.groupby((later.time - middle) // DAY)]
    files = [part[at : at + args.file] for part in nights for at in range(0, len(part), args.file)]

    with tempfile.TemporaryDirectory() as folder:
        warm = Path(folder) / "warm"
        events.write.parquet(str(Path(folder) / "events"))
        frozen = fit(trainer_of(args, Checkpoint(str(warm))), events.where(F.col("time") < middle))
        online, seconds = learn_online(events, files, warm, questions, args)
        found = {"online": online.scores()["hit"]}
        assert online.publisher is not None
        versions = online.publisher.versions()
        online.publish()
        served = Predictor.load(online.publisher.path)
        row = later.iloc[-1]
        asked = {"columns": row.person, "history": row.history, "length": row.length}
        best = served.predict({name: np.asarray(value)[None] for name, value in asked.items()})["items"][0]
        print(
            f"{len(files)} files in {seconds:.0f} s; {len(versions)} versions kept; {len(best)} films served"
        )

    weights = [len(part) for part in nights]
    nightly, taken = [], Counter(np.searchsorted(questions.ids, table[table.time < middle].item_id).tolist())
    popular: list[float] = []
    begin = time.perf_counter()
    for part in nights:
        before = events.where(F.col("time") < middle + (int(part.time.iloc[0]) - middle) // DAY * DAY)
        nightly.append(questions.hits(fit(trainer_of(args), before), part))
    print(f"{len(nights)} nights in {time.perf_counter() - begin:.0f} s")
    for file in files:
        popular.append(questions.popular(taken, file))
        taken.update(np.searchsorted(questions.ids, file.item_id).tolist())
    found |= {
        "nightly": float(np.average(nightly, weights=weights)),
        "frozen": float(np.average([questions.hits(frozen, part) for part in nights], weights=weights)),
        "popular": float(np.average(popular, weights=[len(file) for file in files])),
    }
    spark.stop()
    print(f"events={len(later)}")
    for name in ("popular", "frozen", "nightly", "online"):
        print(f"{name}_hr_at_10={found[name]:.4f}")


if __name__ == "__main__":
    main()
