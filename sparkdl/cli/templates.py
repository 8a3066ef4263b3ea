"""Templates of ``sparkdl init``. ``$names`` are filled in by :mod:`sparkdl.cli.init`."""

from __future__ import annotations

from string import Template

BEGIN = """\
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--run", default="first", help="name of the run, and of its folder in runs")
    args = parser.parse_args()

    spark = session.builder(app_name=args.run).getOrCreate()"""

SCRIPT = Template('''\
"""$title

    sparkdl submit --conf-file job.toml
    sparkdl submit --conf-file job.toml -- --epochs 50 --run second

Everything here is meant to be changed.
"""

import argparse
from importlib.util import find_spec

${spark_ml}from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F$types

from sparkdl import $model, $estimator, session
from sparkdl.summary import JsonLines, TensorBoard

$constants


$read


$score


def main() -> None:
$begin
    # Cached, so that both parts are cut from the same rows.
    table = read(spark).cache()
    train, held_out = table.randomSplit([0.8, 0.2], seed=0)

    folder = f"runs/{args.run}"
    hooks = [JsonLines(f"{folder}/history.jsonl")]
    if find_spec("tensorboard"):  # pip install 'sparkdl[tensorboard]'
        hooks.append(TensorBoard(folder))
    # Strings, numbers, booleans, dates and nulls are taken as they are.
    estimator = $estimator(
        featuresCols=FEATURES,
        labelCol=LABEL,
        maxEpochs=args.epochs,
        learningRate=args.lr,
        validationFraction=0.1,
        earlyStoppingPatience=5,
        checkpointPath=f"{folder}/checkpoints",
        resume=True,
        hooks=hooks,
    )
    model = estimator.fit(train)
    print(model.encoding.describe())
    for name, value in score(model, held_out).items():
        print(f"{name}={value:.4f}")
    model.write().overwrite().save(f"{folder}/model")
    spark.stop()


if __name__ == "__main__":
    main()
''')

IN_PLACE = Template('''\
"""$title

    sparkdl submit --conf-file job.toml
    sparkdl submit --conf-file job.toml -- --epochs 50 --run second

Rows are read where they lie: nothing is copied. Everything here is meant to be changed.
"""

import argparse
from functools import partial$reduce
from importlib.util import find_spec$and_

${arrow}import torch
from safetensors.torch import save_file
from torch import nn
from torchmetrics$kind import $metric

from sparkdl import $column, Trainer, session
from sparkdl.summary import JsonLines, TensorBoard
from sparkdl.train import Checkpoint, EarlyStopping, EveryEpoch, MaxEpoch

$constants


class Network(nn.Module):
    """A multilayer perceptron on standardised columns, each of which is a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm1d(len(FEATURES)),
            nn.Linear(len(FEATURES), 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, $outputs),
        )

    def forward(self, *columns: torch.Tensor) -> torch.Tensor:
        x = torch.stack([column.float() for column in columns], 1)
        return $answer


def main() -> None:
$begin
    folder = f"runs/{args.run}"
    checkpoint = Checkpoint(f"{folder}/checkpoints", EveryEpoch())
    hooks = [JsonLines(f"{folder}/history.jsonl"), checkpoint, EarlyStopping(patience=5)]
    if find_spec("tensorboard"):  # pip install 'sparkdl[tensorboard]'
        hooks.append(TensorBoard(folder))
$filter    with Dataset.from_parquet(DATA, features=FEATURES, label=$label$given, spark=spark) as rows:
        trainer = Trainer(
            Network(),
            loss=nn.$loss(),
            optimizer=partial(torch.optim.Adam, lr=args.lr),
            batch_size=256,
            end_when=MaxEpoch(args.epochs),
            metrics={"$score": $metric($arguments)},
            hooks=hooks,
        )
        # A tenth of the rows, always the same ones, is held out.
        result = trainer.fit(rows, validation=0.1, resume=True)
    for name, value in result.scores.items():
        print(f"{name}={value:.4f}")
    save_file(result.module.state_dict(), f"{folder}/model.safetensors")
    spark.stop()


if __name__ == "__main__":
    main()
''')

READ = Template('''\
def read(spark: SparkSession) -> DataFrame:
    """Return the rows to learn from$what."""
    table = $rows$drop
    return table.withColumn(LABEL, F.col(f"`{LABEL}`").cast("$label_type"))''')

READ_CSV = Template('''\
def read(spark: SparkSession) -> DataFrame:
    """Return the rows to learn from$what. A value of another type than COLUMNS says is an error."""
    types = StructType()
    for name, kind in COLUMNS.items():
        types.add(name, kind)
    options = {"header": True, "enforceSchema": False, "mode": "FAILFAST", "escape": '"'}
    options |= {"ignoreLeadingWhiteSpace": True, "ignoreTrailingWhiteSpace": True}
    table = spark.read.schema(types).csv(DATA, sep=SEPARATOR, **options)$drop
    return table.withColumn(LABEL, F.col(f"`{LABEL}`").cast("$label_type"))''')

DROP = '\n    table = table.na.drop(subset=[f"`{name}`" for name in [*FEATURES, LABEL]])'

INVENT = '''\
def read(spark: SparkSession) -> DataFrame:
    """Return rows to try things out: whether a point lies in a ring. Put your own table here."""
    points = spark.range(4000).select((4 * F.rand(0) - 2).alias("x"), (4 * F.rand(1) - 2).alias("y"))
    radius = F.sqrt(F.col("x") ** 2 + F.col("y") ** 2)
    return points.withColumn(LABEL, F.when(radius.between(0.8, 1.6), "inside").otherwise("outside"))'''

SCORE_CLASSES = '''\
def score(model: TorchClassificationModel, held_out: DataFrame) -> dict[str, float]:
    """Return the share of rows with the right label, beside that of the most frequent label.

    Where classes are unequal, the recall of the rarest says more, and so does, of two classes, the area under
    the ROC curve: 0.5 for guesses.
    """
    label = F.col(f"`{LABEL}`")
    found = model.transform(held_out)
    right = F.sum((label == F.col("predictedLabel")).cast("int"))
    groups = found.groupBy(label.alias("label")).agg(F.count("*").alias("rows"), right.alias("right"))
    classes = sorted(groups.collect(), key=lambda row: row["rows"])
    rows = sum(row["rows"] for row in classes)
    scores = {"accuracy": sum(row["right"] for row in classes) / rows}
    scores["most_frequent"] = classes[-1]["rows"] / rows
    scores[f"recall of {classes[0]['label']}"] = classes[0]["right"] / classes[0]["rows"]
    if len(model.labels) == len(classes) == 2:
        second = found.select("probability", (label == model.labels[1]).cast("double").alias("second"))
        area = BinaryClassificationEvaluator(rawPredictionCol="probability", labelCol="second", numBins=0)
        scores["area_under_roc"] = area.evaluate(second)
    return scores'''

SCORE_NUMBERS = '''\
def score(model: TorchRegressionModel, held_out: DataFrame) -> dict[str, float]:
    """Return the mean absolute error, and that of the mean label."""
    found, label = model.transform(held_out), F.col(f"`{LABEL}`")
    mean = found.select(F.avg(label)).first()[0]
    errors = F.avg(F.abs(label - F.col("prediction"))), F.avg(F.abs(label - mean))
    return dict(zip(["mean_absolute_error", "of_the_mean"], found.select(*errors).first(), strict=True))'''

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
| `train.py` | reads the table, trains, prints the scores on rows it has not seen, saves the model in `runs` |
| `job.toml` | where and with what it runs ($cluster); every line says why |

```sh
sparkdl doctor --master $master       # whether the setup can train
sparkdl submit --conf-file job.toml     # train
sparkdl runs runs                       # what was trained, and how it ended
```

Arguments of the script come after `--`: `sparkdl submit --conf-file job.toml -- --epochs 50 --run second`.
A run that was stopped goes on from its last checkpoint when it is started again under the same name.$notes
""")
