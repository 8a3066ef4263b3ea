"""BigDL Orca: BERT. Columns must have one shape, so the texts are padded to a length."""

import sys

import pandas as pd
import torch
from bigdl.orca import init_orca_context, stop_orca_context
from bigdl.orca.learn.metrics import Accuracy
from bigdl.orca.learn.pytorch import Estimator
from pyspark.ml.feature import StringIndexer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

init_orca_context(cluster_mode="local", cores=2)
spark = SparkSession.builder.getOrCreate()
fast = AutoTokenizer.from_pretrained(sys.argv[2])
config = BertConfig(
    vocab_size=len(fast),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    num_labels=3,
)


class Logits(torch.nn.Module):
    """Orca's loss takes tensors, not the output of transformers."""

    def __init__(self):
        super().__init__()
        self.bert = BertForSequenceClassification(config)

    def forward(self, input_ids, attention_mask):
        return self.bert(input_ids, attention_mask=attention_mask).logits


@F.pandas_udf("input_ids array<long>, attention_mask array<long>")
def tokens(texts: pd.Series) -> pd.DataFrame:
    found = fast(list(texts), padding="max_length", truncation=True, max_length=16)
    return pd.DataFrame({name: found[name] for name in ("input_ids", "attention_mask")})


texts = spark.read.parquet(sys.argv[1])
texts = StringIndexer(inputCol="way", outputCol="index").fit(texts).transform(texts)
texts = texts.select(tokens("text").alias("tokens"), F.col("index").cast("long").alias("label"))
train, test = texts.select("tokens.*", "label").cache().randomSplit([0.8, 0.2], seed=1)
columns = {"feature_cols": ["input_ids", "attention_mask"], "label_cols": ["label"]}
estimator = Estimator.from_torch(
    model=lambda config: Logits(),
    optimizer=lambda model, config: torch.optim.AdamW(model.parameters(), lr=1e-2),
    loss=torch.nn.CrossEntropyLoss(),
    metrics=[Accuracy()],
    backend="spark",
    workers_per_node=2,
)
estimator.fit(train, epochs=5, batch_size=16, **columns)
scores = estimator.evaluate(test, batch_size=64, **columns)
estimator.get_model().bert.save_pretrained(f"{sys.argv[3]}/orca")
print(f"accuracy={scores['Accuracy']:.4f}")
stop_orca_context()
