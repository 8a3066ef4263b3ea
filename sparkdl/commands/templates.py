"""What ``sparkdl init`` writes. ``$names`` are filled in by :mod:`sparkdl.commands.init`."""

from __future__ import annotations

from string import Template

SCRIPT = Template('''\
"""$title

    sparkdl submit --conf-file job.toml
    sparkdl submit --conf-file job.toml -- --epochs 50 --run second

Everything here is meant to be changed.
"""

import argparse
from functools import partial
from importlib.util import find_spec

import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from $metrics_module import $metric

from sparkdl import Dataset, Trainer, session
from sparkdl.nn import MLP
from sparkdl.summary import JsonLines, TensorBoard
from sparkdl.train import Checkpoint, EarlyStopping, MaxEpoch

$constants


$read


def prepare(df: DataFrame) -> DataFrame:
    """Return the columns features, an array, and label$label_kind."""
    features = F.array(*(F.col(f"`{name}`").cast("float") for name in FEATURES))
$label
    return df.select(features.alias("features"), label.alias("label"))


def scale(module: MLP, df: DataFrame) -> None:
    """Tell the model mean and deviation of $scaled, so that all are of one size to it."""
$scale


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=$batch_size, help="rows per iteration, in all")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--run", default="first", help="name of the run, and of its folder in runs")
    args = parser.parse_args()

    spark = session.builder(app_name=args.run).getOrCreate()
    # Cached, so that both parts are cut from the same rows.
    table = prepare(read(spark)).cache()
    train, held_out = table.randomSplit([0.8, 0.2], seed=0)

    torch.manual_seed(0)  # for the initial weights
    module = MLP(inputs=len(FEATURES), outputs=$outputs)
    scale(module, train)
    folder = f"runs/{args.run}"
    hooks = [
        JsonLines(f"{folder}/history.jsonl"),
        Checkpoint(f"{folder}/checkpoints"),
        EarlyStopping(patience=5),
    ]
    if find_spec("tensorboard"):  # pip install 'sparkdl[tensorboard]'
        hooks.append(TensorBoard(folder))
    trainer = Trainer(
        module,
        loss=torch.nn.$loss(),
        optimizer=partial(torch.optim.Adam, lr=args.lr),
        metrics={"$score": $metric($metric_arguments)},
        batch_size=args.batch_size,
        end_when=MaxEpoch(args.epochs),
        hooks=hooks,
        name=args.run,
    )
    with (
        Dataset.from_dataframe(train, features="features", label="label") as rows,
        Dataset.from_dataframe(held_out, features="features", label="label") as unseen,
    ):
        result = trainer.fit(rows, validation=unseen, resume=True)
    spark.stop()
    torch.save(result.module.state_dict(), f"{folder}/model.pt")
    for name, value in result.scores.items():
        print(f"{name}={value:.4f}")


if __name__ == "__main__":
    main()
''')

READ = '''\
def read(spark: SparkSession) -> DataFrame:
    """Return the rows to learn from."""
    return spark.read.parquet(DATA)'''

READ_WITHOUT_NULLS = '''\
def read(spark: SparkSession) -> DataFrame:
    """Return the rows to learn from: those without nulls."""
    return spark.read.parquet(DATA).na.drop(subset=[*FEATURES, LABEL])'''

INVENT = '''\
def read(spark: SparkSession) -> DataFrame:
    """Return rows to try things out: whether a point lies in a ring. Put your own table here."""
    points = spark.range(4000).select((4 * F.rand(0) - 2).alias("x"), (4 * F.rand(1) - 2).alias("y"))
    radius = F.sqrt(F.col("x") ** 2 + F.col("y") ** 2)
    return points.withColumn(LABEL, F.when(radius.between(0.8, 1.6), "inside").otherwise("outside"))'''

# Before Spark 4.0 F.array_position takes no column to look for.
CLASS_LABEL = """\
    classes = F.array(*map(F.lit, CLASSES))
    label = F.call_function("array_position", classes, F.col(f"`{LABEL}`").cast("string")) - 1"""

NUMBER_LABEL = """\
    label = F.array(F.col(f"`{LABEL}`").cast("float"))  # of one value, like the model's output"""

SCALE_INPUTS = """\
    columns = [F.col("features")[n] for n in range(len(FEATURES))]
    found = df.select(*map(F.mean, columns), *map(F.stddev, columns)).first()
    assert found is not None
    mean, deviation = torch.tensor([float(value or 0) for value in found]).chunk(2)
    module.scale_inputs(mean, deviation)"""

SCALE_BOTH = """\
    columns = [F.col("features")[n] for n in range(len(FEATURES))] + [F.col("label")[0]]
    found = df.select(*map(F.mean, columns), *map(F.stddev, columns)).first()
    assert found is not None
    mean, deviation = torch.tensor([float(value or 0) for value in found]).chunk(2)
    module.scale_inputs(mean[:-1], deviation[:-1])
    module.scale_outputs(mean[-1:], deviation[-1:])"""

JOBS = {
    "local": """\
# sparkdl submit --conf-file job.toml
master = "local[*]" # all cores of this machine
script = "train.py"
# tensorboard = "runs" # a page with curves while the job runs: pip install 'sparkdl[tensorboard]'

[conf]
"spark.driver.memory" = "2g" # of the JVM; Python and torch need their own
""",
    "standalone": """\
# sparkdl submit --conf-file job.toml
master = $master
script = "train.py"
pack-env = true # ships the virtual environment that the command runs in; or: env = "environment.tar.gz"
# tensorboard = "runs"

[conf]
"spark.executor.memory" = "2g" # of the JVM: leave most of a machine's memory to Python and torch
# "spark.executor.cores" = 4 # all cores of a worker, if nothing is said here
# "spark.cores.max" = 16 # of all executors together
""",
    "yarn": """\
# sparkdl submit --conf-file job.toml    (HADOOP_CONF_DIR says where the cluster is)
master = "yarn"
script = "train.py"
pack-env = true # ships the virtual environment that the command runs in; or: env = "hdfs:///environment.tar.gz"
# tensorboard = "runs"

[conf]
"spark.executor.instances" = 4 # one for each machine
"spark.executor.cores" = 4 # of each; a task uses all of them
"spark.executor.memory" = "2g" # of the JVM
"spark.executor.memoryOverhead" = "4g" # Python, torch, the model; YARN kills what exceeds both
""",
    "kubernetes": """\
# sparkdl submit --conf-file job.toml
master = $master
script = "train.py"
# tensorboard = "runs"

[conf]
"spark.kubernetes.container.image" = "sparkdl:latest" # with Spark, torch and sparkdl; its python3 runs tasks
"spark.executor.instances" = 4 # one for each node
"spark.executor.cores" = 4 # of each; a task uses all of them
"spark.executor.memory" = "2g" # of the JVM
"spark.executor.memoryOverhead" = "4g" # Python, torch, the model; a pod that exceeds both is killed
# "spark.driver.host" = "..." # an address of this machine that pods reach
""",
}

MASTERS = {"standalone": "spark://localhost:7077", "kubernetes": "k8s://https://kubernetes.default.svc:443"}

README = Template("""\
# $title

| file | |
|---|---|
| `train.py` | reads the table, trains, prints the scores on rows it has not seen |
| `job.toml` | where and with what it runs ($cluster); every line says why |

```sh
sparkdl doctor --master $master       # whether the setup can train
sparkdl submit --conf-file job.toml     # train
sparkdl runs runs                       # what was trained, and how it ended
```

Arguments of the script come after `--`: `sparkdl submit --conf-file job.toml -- --epochs 50 --run second`.
A run that was stopped goes on from its last checkpoint when it is started again under the same name.$notes
""")
