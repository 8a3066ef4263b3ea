"""Recommend films: from events to the ten best, retrieved, ranked again, served, and kept up to date.

    python examples/recommender_movielens.py --master 'local[2]'
    python examples/recommender_movielens.py --master 'local[2]' --epochs 1 --users 100

MovieLens-100K, where a rating counts as an event, whatever it says. Each user's last event is held out and
looked for among all 1,682 films that he has not rated before, without samples. Users, films and what is known
of them become 64-bit ids by a hash, so no step numbers them; their vectors are in embedding variables.

1. Features, by Spark SQL: the films of a user before each event, shares of films, films not seen.
2. Two towers learn which film of a batch each user took; the vectors of all films are searched exactly.
3. DIN learns to tell the film taken from films that the towers would have offered: to correct their score.
4. Both are one module, which is published, served by ``sparkdl serve``, and asked for a user's ten films.
5. The events that were held out arrive as a stream of files. The towers learn each file once, new versions
   are published, and the server takes them up while it runs.

``online_movielens.py`` asks what such a stream is worth: it compares with models trained every night.

The ratings are an example file of the package recbole, which is not imported:
``pip install --no-deps recbole``. Only the driver needs it.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import Tensor, nn

from sparkdl import Column, Dataset, Trainer, session
from sparkdl.metrics import NDCG, HitRatio
from sparkdl.ml import TorchModel
from sparkdl.nn import DIN, Recommender, TopK, TwoTower, in_batch_step
from sparkdl.nn.batch import Batch
from sparkdl.nn.losses import binary_cross_entropy
from sparkdl.online import OnlineTrainer, Publisher
from sparkdl.recsys import (
    count_categories,
    hash_ids,
    leave_last_out,
    with_category,
    with_hash,
    with_history,
    with_negatives,
)
from sparkdl.train import Checkpoint, MaxEpoch

PAST, FILES = 20, 4
LAZY = partial(torch.optim.Adagrad, lr=0.1)
FEATURES: dict[str, str | Column] = {
    "item": Column("film", (3,)),
    "user": Column("person", (3,)),
    "history": Column("history", (PAST,)),
    "length": "length",
}
LABEL = Column("share", dtype="float32")
PAST_OF_USER = {"history": ("history", PAST), "length": ("length", 0)}
GIVEN = {"columns": ("person", 3), **PAST_OF_USER}
PAIR = {"user": ("person", 3), **PAST_OF_USER}


def read(name: str, columns: str) -> pd.DataFrame:
    """Return a file of MovieLens-100K."""
    package = find_spec("recbole")
    if package is None or package.origin is None:
        raise SystemExit("the ratings come with recbole: pip install --no-deps recbole")
    file = Path(package.origin).parent / "dataset_example" / "ml-100k" / f"ml-100k.{name}"
    return pd.read_csv(file, sep="\t", header=0, names=columns.split(), dtype=str, keep_default_na=False)


def read_events(spark: SparkSession, users: int | None, seed: int) -> DataFrame:
    """Return an event a row: user, film, what is known of both, as ids, and the films before."""
    events = read("inter", "user item rating time").astype({"time": "int64"})
    films = read("item", "item title year genres")[["item", "year", "genres"]]
    people = read("user", "user age gender occupation zip")[["user", "gender", "occupation"]]
    if users:
        events = events[events.user.astype(int) <= users]
    table = spark.createDataFrame(events.merge(films, on="item").merge(people, on="user"))
    for name in ("item", "year", "genres", "user", "gender", "occupation"):
        table = with_hash(table, f"{name}_id", name, salt=name)
    table = with_history(table, PAST, user="user_id", item="item_id", seed=seed)
    film = [F.col(f"{name}_id") for name in ("item", "year", "genres")]
    person = [F.col(f"{name}_id") for name in ("user", "gender", "occupation")]
    kept = ("user_id", "item_id", "time", "history", "length")
    return table.select(*kept, F.array(*film).alias("film"), F.array(*person).alias("person"))


def towers_trainer(args: argparse.Namespace, *hooks: Any) -> Trainer:
    """Return a trainer of new towers."""
    torch.manual_seed(args.seed)
    return Trainer(
        TwoTower((None,) * 3, (None,) * 3, 32, (64,), 32, history=True, variables={"seed": args.seed}),
        step=in_batch_step,
        optimizer={"*tables*": LAZY, "*": partial(torch.optim.Adam, lr=2e-3)},
        batch_size=args.batch_size,
        seed=args.seed,
        end_when=MaxEpoch(args.epochs),
        hooks=hooks,
        name="towers",
    )


def train_towers(rows: DataFrame, trainer: Trainer) -> TwoTower:
    """Learn vectors of users and films."""
    with Dataset.from_dataframe(rows, features=FEATURES, label=LABEL, num_partitions=2) as data:
        found = trainer.fit(data).module
    assert isinstance(found, TwoTower)
    return found.eval()


def search_of(towers: TwoTower, films: pd.DataFrame, candidates: int) -> TopK:
    """Return the search among all films; a film that was never trained on has the vector of what is known."""
    towers.eval()
    with torch.no_grad():
        vectors = towers.item_tower(torch.tensor(np.stack(films.film)))
    search = TopK(towers.user_tower, len(films), towers.width, min(candidates, len(films)))
    return search.fill(torch.tensor(films.item_id.tolist()), vectors)


def rank_step(module: DIN, batch: Batch) -> Tensor:
    """Return the loss of what the towers and DIN say together, so that DIN learns what to correct."""
    inputs = dict(batch.inputs)
    logits = inputs.pop("score")
    return binary_cross_entropy(logits + module(**inputs), batch.label)


def with_offers(
    train: DataFrame, towers: TwoTower, search: TopK, films: pd.DataFrame, args: argparse.Namespace
) -> DataFrame:
    """Give each event films to tell its own from: some that the towers offer, some drawn from all unseen."""
    drawn = with_negatives(train, args.negatives, user="user_id", item="item_id", seed=args.seed)
    # A film that the user took at another time is no negative.
    taken = train.groupBy("user_id").agg(F.collect_set("item_id").alias("taken_ever"))
    offered = model_of(search, GIVEN).transform(drawn.join(taken, "user_id"))
    order = F.expr(f"""transform(array_except(items, taken_ever),
        other -> struct(xxhash64(item_id, time, other, {args.seed}) AS place, other AS other))""")
    hard = F.slice(F.array_sort(order), 1, args.negatives).getField("other")
    candidates = F.concat(F.array("item_id"), "negatives", hard)
    kept = ("person", "history", "length")
    rows = offered.select(*kept, F.posexplode(candidates).alias("place", "item_id"))
    rows = rows.join(F.broadcast(train.sparkSession.createDataFrame(films)), "item_id")
    scored = model_of(towers, {**PAIR, "item": ("film", 3)}, "score").transform(rows)
    return scored.withColumn("taken", (F.col("place") == 0).cast("float"))


def train_ranker(rows: DataFrame, args: argparse.Namespace) -> DIN:
    """Learn which of the films offered was taken."""
    torch.manual_seed(args.seed + 1)
    trainer = Trainer(
        DIN(None, embedding=32, attention=(32,), hidden=(64, 32), variables={"seed": args.seed + 100}),
        step=rank_step,
        optimizer={"*table*": partial(torch.optim.Adagrad, lr=0.02), "*": partial(torch.optim.Adam, lr=5e-4)},
        batch_size=4 * args.batch_size,
        seed=args.seed,
        end_when=MaxEpoch(args.rank_epochs),
        name="ranker",
    )
    features: dict[str, str | Column] = {
        "item": "item_id",
        "history": Column("history", (PAST,)),
        "length": "length",
        "score": Column("score", dtype="float32"),
    }
    with Dataset.from_dataframe(rows, features=features, label="taken") as data:
        found = trainer.fit(data).module
    assert isinstance(found, DIN)
    return found.eval()


def model_of(module: nn.Module, columns: dict[str, tuple[str, int]], *outputs: str) -> TorchModel:
    """Return a module as a Spark ML model.

    Args:
        module: the module.
        columns: by argument of the module, a column and how many elements it has, 0 for a number.
        outputs: names of the columns that it gives; by default the best films and their scores.
    """
    example = {
        name: torch.zeros(2, *([size] if size else []), dtype=torch.int64).numpy()
        for name, (_, size) in columns.items()
    }
    return TorchModel.from_module(
        module,
        example=example,
        featuresCols=[column for column, _ in columns.values()],
        inputNames=list(columns),
        outputCols=list(outputs) or ["items", "scores"],
    )


def with_seen(test: DataFrame, train: DataFrame) -> tuple[DataFrame, int]:
    """Add the films that a user has rated before, filled up with 0, and how many elements that makes."""
    sets = train.groupBy("user_id").agg(F.collect_set("item_id").alias("seen"))
    most = sets.agg(F.max(F.size("seen"))).first()[0]
    zeros = F.array_repeat(F.lit(0).cast("bigint"), most)
    filled = sets.withColumn("seen", F.slice(F.concat("seen", zeros), 1, most))
    return test.join(filled, "user_id"), most


def scores_of(found: DataFrame) -> dict[str, float]:
    """Return how often the film held out is among the first ten, and how far up."""
    rows = found.select("item_id", "items").toPandas()
    hit = torch.tensor(np.stack(rows["items"])) == torch.tensor(rows.item_id.tolist()).unsqueeze(1)
    ranking = torch.arange(hit.shape[1], 0, -1).expand(hit.shape).float()
    result = {}
    for name, metric in (("hr", HitRatio(10)), ("ndcg", NDCG(10)), ("found", HitRatio(hit.shape[1]))):
        metric.update(ranking, hit.long())
        result[name] = metric.compute().item()
    return result


def popular(test: DataFrame, train: DataFrame) -> float:
    """Return the hit ratio of the ten films that most users have rated, less those that a user has."""
    order = [row.value for row in count_categories(train, "item_id").orderBy("index").collect()]
    hits = 0
    rows = test.select("item_id", "seen").collect()
    for row in rows:
        seen = set(row.seen)
        first: list[int] = []
        for film in order:
            if film not in seen:
                first.append(film)
            if len(first) == 10:
                break
        hits += row.item_id in first
    return hits / len(rows)


class Server:
    """``sparkdl serve`` on a folder of versions, and the best films that it answers with.

    Args:
        folder: where versions are published.
        user: columns of the user to ask for.
        names: titles by id.
    """

    def __init__(self, folder: str, user: dict[str, Any], names: dict[int, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "sparkdl", "serve", folder, "--port", str(port), "--watch", "0.5"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._names, self._version = names, ""
        self._request = urllib.request.Request(
            f"http://127.0.0.1:{port}/predict",
            json.dumps({"rows": [user]}).encode(),
            headers={"Content-Type": "application/json"},
        )

    def best(self) -> list[str]:
        """Wait until another version is served than before; return the ten best films."""
        for _ in range(600):
            try:
                with urllib.request.urlopen(self._request, timeout=30) as answer:
                    row = json.load(answer)["rows"][0]
                    version = answer.headers["X-Model-Version"]
                    if version != self._version:
                        self._version = version
                        return [self._names[item] for item in row["items"]]
            except (ConnectionError, urllib.error.URLError) as error:
                if isinstance(error, urllib.error.HTTPError):
                    raise
                if self._process.poll() is not None:
                    raise SystemExit("the server has ended") from None
            time.sleep(0.2)
        raise SystemExit("the server does not take up a new version")

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait()


def learn(online: OnlineTrainer, rows: DataFrame, folder: Path, numbers: range) -> None:
    """Let events arrive as files; learn them and publish."""
    folder.mkdir(exist_ok=True)
    table = rows.orderBy("time", "user_id").toPandas()
    for number in numbers:
        part = table[number * len(table) // FILES : (number + 1) * len(table) // FILES]
        part.to_parquet(folder / f"{number:05d}.parquet", index=False)
        time.sleep(0.01)  # Spark takes files in the order in which they were written
    stream = rows.sparkSession.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1)
    query = online.start(
        stream.parquet(str(folder)),
        features=FEATURES,
        label=LABEL,
        num_partitions=2,
        trigger={"availableNow": True},
    )
    query.await_termination()
    error = query.exception()
    if error is not None:
        raise error
    online.publish()


def main() -> None:
    parser = argparse.ArgumentParser(description="Recommend films of MovieLens-100K with Spark.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--epochs", type=int, default=8, help="of the towers")
    parser.add_argument("--rank-epochs", type=int, default=1, help="of the ranker")
    parser.add_argument("--users", type=int, help="how many of the 943 users to take; by default all")
    parser.add_argument("--candidates", type=int, default=100, help="films that are ranked again")
    parser.add_argument("--negatives", type=int, default=4, help="of either kind, for each film taken")
    parser.add_argument("--batch-size", type=int, default=512, help="events per iteration")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="recommender").getOrCreate()
    events = read_events(spark, args.users, args.seed).cache()
    columns = {"user": "user_id", "item": "item_id"}
    train, test = (part.cache() for part in leave_last_out(events, **columns, seed=args.seed))
    films = events.select("item_id", "film").distinct().orderBy("item_id").toPandas()
    shares = count_categories(train, "item_id")
    later = with_category(test, "item_id", shares, share="share")
    test, most = with_seen(test, train)
    asked = {**GIVEN, "seen": ("seen", most)}
    titles = read("item", "item title year genres")
    names = dict(zip(hash_ids(titles["item"].tolist(), salt="item").tolist(), titles.title, strict=True))
    row = test.orderBy("user_id").first()
    user = {column: getattr(row, column) for column, _ in asked.values()}

    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        trainer = towers_trainer(args, Checkpoint(str(folder / "warm")))
        towers = train_towers(with_category(train, "item_id", shares, share="share"), trainer)
        search = search_of(towers, films, args.candidates)
        ranker = train_ranker(with_offers(train, towers, search, films, args).cache(), args)

        def published(module: nn.Module) -> TorchModel:
            """Return retrieval by these towers, and the ranker, as one model."""
            assert isinstance(module, TwoTower)
            search = search_of(module, films, args.candidates)
            return model_of(Recommender(search, ranker, 10, 1 / module.temperature), asked)

        retrieved = scores_of(model_of(search, asked).transform(test))
        ranked = scores_of(published(towers).transform(test))
        baseline = popular(test, train)

        online = OnlineTrainer(
            towers_trainer(args),
            folder / "stream",
            begin=folder / "warm",
            publisher=Publisher(folder / "models", published, seconds=3600),  # and when we say so
        )
        assert online.publisher is not None
        learn(online, later, folder / "events", range(1))
        server = Server(online.publisher.path, user, names)
        try:
            print("served: " + "; ".join(server.best()))
            learn(online, later, folder / "events", range(1, FILES))
            print("served after the stream: " + "; ".join(server.best()))
        finally:
            server.close()
        history = online.history
    spark.stop()
    learned = sum(batch["rows"] for batch in history)
    print(f"learned from the stream: {learned} events in {len(history)} batches")
    print(f"popular_hr_at_10={baseline:.4f}")
    print(f"retrieved_in_{args.candidates}={retrieved['found']:.4f}")
    print(f"retrieval_hr_at_10={retrieved['hr']:.4f}")
    print(f"ndcg_at_10={ranked['ndcg']:.4f}")
    print(f"hr_at_10={ranked['hr']:.4f}")


if __name__ == "__main__":
    main()
