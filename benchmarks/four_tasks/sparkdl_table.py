"""A table with strings and nulls, as it is."""

import sys

from sparkdl import TorchClassifier, session

spark = session.builder("local[2]").getOrCreate()
train, test = spark.read.parquet(sys.argv[1]).randomSplit([0.8, 0.2], seed=1)
features = ["age", "job", "city", "income", "member"]
model = TorchClassifier(featuresCols=features, labelCol="bought", maxEpochs=3).fit(train)
model.write().overwrite().save("table")
found = model.transform(test).selectExpr("avg(double(bought = predictedLabel)) AS accuracy").first()
print(f"accuracy={found.accuracy:.4f}")
