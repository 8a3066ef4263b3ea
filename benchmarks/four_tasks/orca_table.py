"""BigDL Orca: the table, encoded by Spark ML's stages."""

import sys

import torch
from bigdl.orca import init_orca_context, stop_orca_context
from bigdl.orca.learn.metrics import Accuracy
from bigdl.orca.learn.pytorch import Estimator
from net import Net
from pyspark.ml import Pipeline
from pyspark.ml.feature import Imputer, StandardScaler, StringIndexer, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from safetensors.torch import save_file

TEXTS, NUMBERS = ["job", "city"], ["age", "income", "member"]

init_orca_context(cluster_mode="local", cores=2)
spark = SparkSession.builder.getOrCreate()
rows = spark.read.parquet(sys.argv[1]).na.fill("missing", TEXTS)
for name in NUMBERS:
    rows = rows.withColumn(f"no_{name}", F.isnull(name).cast("float"))
    rows = rows.withColumn(name, F.col(name).cast("float"))
train, test = rows.randomSplit([0.8, 0.2], seed=1)
indexed = [f"{name}_index" for name in TEXTS]
encoding = Pipeline(
    stages=[
        StringIndexer(inputCols=TEXTS, outputCols=indexed, handleInvalid="keep"),
        StringIndexer(inputCol="bought", outputCol="label"),
        Imputer(inputCols=NUMBERS, outputCols=NUMBERS),
        VectorAssembler(inputCols=NUMBERS, outputCol="known"),
        StandardScaler(inputCol="known", outputCol="scaled", withMean=True),
    ]
).fit(train)


def encoded(rows):
    numbers = F.concat(vector_to_array("scaled", "float32"), F.array(*[f"no_{name}" for name in NUMBERS]))
    return encoding.transform(rows).select(
        F.array(*[F.col(name).cast("long") for name in indexed]).alias("categories"),
        numbers.alias("numbers"),
        F.col("label").cast("long").alias("label"),
    )


sizes = [len(labels) + 1 for labels in encoding.stages[0].labelsArray]
classes = len(encoding.stages[1].labels)
columns = {"feature_cols": ["categories", "numbers"], "label_cols": ["label"]}
estimator = Estimator.from_torch(
    model=lambda config: Net(sizes, 2 * len(NUMBERS), classes),
    optimizer=lambda model, config: torch.optim.Adam(model.parameters(), lr=1e-3),
    loss=torch.nn.CrossEntropyLoss(),
    metrics=[Accuracy()],
    backend="spark",
    workers_per_node=2,
)
estimator.fit(encoded(train), epochs=3, batch_size=256, **columns)
scores = estimator.evaluate(encoded(test), batch_size=2048, **columns)
encoding.write().overwrite().save(f"{sys.argv[2]}/encoding")
save_file(estimator.get_model().state_dict(), f"{sys.argv[2]}/orca.safetensors")
print(f"accuracy={scores['Accuracy']:.4f}")
stop_orca_context()
