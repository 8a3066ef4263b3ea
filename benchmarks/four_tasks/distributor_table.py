"""TorchDistributor: the table. Rows leave Spark as files; encoding, loop and scores are the program's."""

import json
import sys

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

TEXTS, NUMBERS = ["job", "city"], ["age", "income", "member"]


def train(folder, encoding):
    import pandas as pd
    import torch
    import torch.distributed as dist
    from net import Net
    from safetensors.torch import save_file
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    def read(part):
        rows = pd.read_parquet(f"{folder}/{part}")
        numbers, categories = [], []
        for name in NUMBERS:
            values = torch.tensor(rows[name].astype("float32").to_numpy())
            missing = values.isnan()
            mean, deviation = encoding["numbers"][name]
            numbers += [torch.where(missing, 0, (values - mean) / deviation), missing.float()]
        for name in TEXTS:
            known = {value: n + 2 for n, value in enumerate(encoding["texts"][name])}
            categories.append(torch.tensor([0 if v is None else known.get(v, 1) for v in rows[name]]))
        labels = torch.tensor([encoding["labels"].index(v) for v in rows["bought"]])
        return TensorDataset(torch.stack(categories, 1), torch.stack(numbers, 1), labels)

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = read("train")
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 128, sampler=sampler)
    sizes = [len(encoding["texts"][name]) + 2 for name in TEXTS]
    model = DistributedDataParallel(Net(sizes, 2 * len(NUMBERS), len(encoding["labels"])))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for categories, numbers, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(categories, numbers), labels).backward()
            optimizer.step()
    test = read("test")
    rank, size = dist.get_rank(), dist.get_world_size()
    with torch.no_grad():
        categories, numbers, labels = (tensor[rank::size] for tensor in test.tensors)
        right = (model.module(categories, numbers).argmax(1) == labels).sum().float()
    dist.all_reduce(right)
    if rank == 0:
        save_file(model.module.state_dict(), f"{folder}/model.safetensors")
        with open(f"{folder}/encoding.json", "w") as file:
            json.dump(encoding, file)
    dist.destroy_process_group()
    return right.item() / len(test)


spark = SparkSession.builder.master("local[2]").getOrCreate()
parts = spark.read.parquet(sys.argv[1]).randomSplit([0.8, 0.2], seed=1)
for part, name in zip(parts, ("train", "test")):
    part.write.mode("overwrite").parquet(f"{sys.argv[2]}/{name}")
rows = parts[0].withColumn("member", F.col("member").cast("float"))
moments = rows.agg(
    *[f(n).alias(f"{f.__name__}_{n}") for n in NUMBERS for f in (F.mean, F.stddev_pop)]
).first()
encoding = {
    "numbers": {name: [moments[f"mean_{name}"], moments[f"stddev_pop_{name}"]] for name in NUMBERS},
    "texts": {
        name: [
            r[name] for r in rows.na.drop(subset=[name]).groupBy(name).count().where("count >= 10").collect()
        ]
        for name in TEXTS
    },
    "labels": [row.bought for row in rows.select("bought").distinct().orderBy("bought").collect()],
}
accuracy = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(train, sys.argv[2], encoding)
print(f"accuracy={accuracy:.4f}")
