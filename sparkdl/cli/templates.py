"""Templates of ``sparkdl init``. ``$names`` are filled in by :mod:`sparkdl.cli.init`."""

from __future__ import annotations

from string import Template

SCRIPT = Template('''\
"""$title

    sparkdl submit --conf-file job.toml
    sparkdl submit --conf-file job.toml -- --epochs 50 --run second

Everything here is meant to be changed.
"""

import argparse
from importlib.util import find_spec

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl import $estimator, session
from sparkdl.summary import JsonLines, TensorBoard

$constants


$read


$score


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--run", default="first", help="name of the run, and of its folder in runs")
    args = parser.parse_args()

    spark = session.builder(app_name=args.run).getOrCreate()
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
    for name, value in score(model.transform(held_out)).items():
        print(f"{name}={value:.4f}")
    model.write().overwrite().save(f"{folder}/model")
    spark.stop()


if __name__ == "__main__":
    main()
''')

READ = '''\
def read(spark: SparkSession) -> DataFrame:
    """Return the rows to learn from."""
    table = spark.read.parquet(DATA)
    return table.withColumn(LABEL, F.col(f"`{LABEL}`").cast("$label_type"))'''

READ_WITHOUT_NULLS = '''\
def read(spark: SparkSession) -> DataFrame:
    """Return the rows to learn from: those without nulls."""
    table = spark.read.parquet(DATA).na.drop(subset=[*FEATURES, LABEL])
    return table.withColumn(LABEL, F.col(f"`{LABEL}`").cast("$label_type"))'''

INVENT = '''\
def read(spark: SparkSession) -> DataFrame:
    """Return rows to try things out: whether a point lies in a ring. Put your own table here."""
    points = spark.range(4000).select((4 * F.rand(0) - 2).alias("x"), (4 * F.rand(1) - 2).alias("y"))
    radius = F.sqrt(F.col("x") ** 2 + F.col("y") ** 2)
    return points.withColumn(LABEL, F.when(radius.between(0.8, 1.6), "inside").otherwise("outside"))'''

SCORE_CLASSES = '''\
def score(found: DataFrame) -> dict[str, float]:
    """Return the share of rows with the right label, and that of the most frequent label."""
    label = F.col(f"`{LABEL}`")
    right = found.select(F.avg((label == F.col("predictedLabel")).cast("double"))).first()
    counts = [row["count"] for row in found.groupBy(label).count().collect()]
    return {"accuracy": right[0], "most_frequent": max(counts) / sum(counts)}'''

SCORE_NUMBERS = '''\
def score(found: DataFrame) -> dict[str, float]:
    """Return the mean absolute error, and that of the mean label."""
    label = F.col(f"`{LABEL}`")
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
