"""A BERT of Hugging Face, trained on texts in Spark and saved without a pickle."""

import sys

from pyspark.ml import PipelineModel
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from sparkdl import TorchClassifier, session
from sparkdl.ml import HFTokenizer, save

spark = session.builder("local[2]").getOrCreate()
train, test = spark.read.parquet(sys.argv[1]).randomSplit([0.8, 0.2], seed=1)
fast = AutoTokenizer.from_pretrained(sys.argv[2])
config = BertConfig(
    vocab_size=len(fast),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    num_labels=3,
)
tokens = HFTokenizer(tokenizer=fast, inputCol="text", maxLength=16)
model = TorchClassifier(
    module=BertForSequenceClassification(config),
    featuresCols=tokens.getOutputCols(),
    labelCol="way",
    batchSize=16,
    learningRate=1e-2,
    maxEpochs=5,
).fit(tokens.transform(train))
found = (
    model.transform(tokens.transform(test))
    .selectExpr("avg(double(way = predictedLabel)) AS accuracy")
    .first()
)
save(PipelineModel([tokens, model]), "bert", overwrite=True)
print(f"accuracy={found.accuracy:.4f}")
