"""Ray Train: the table, read and encoded by ray.data; loop and scores are the program's."""

import sys

import ray
import ray.train
import ray.train.torch
import torch
from net import Net
from ray.data.preprocessors import Chain, LabelEncoder, OrdinalEncoder, SimpleImputer, StandardScaler
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from safetensors.torch import save_file

TEXTS, NUMBERS = ["job", "city"], ["age", "income", "member"]


def with_missing(rows):
    for name in NUMBERS:
        rows[f"no_{name}"] = rows[name].isna().astype("float32")
        rows[name] = rows[name].astype("float32")
    for name in TEXTS:
        rows[name] = rows[name].fillna("missing")
    return rows


def stacked(batch):
    # Values that the fit has not seen come as null, so all categories move up by one.
    categories = [
        torch.nan_to_num(torch.as_tensor(batch[name], dtype=torch.float32), -1) + 1 for name in TEXTS
    ]
    numbers = [torch.as_tensor(batch[name], dtype=torch.float32) for n in NUMBERS for name in (n, f"no_{n}")]
    return torch.stack(categories, 1).long(), torch.stack(numbers, 1), torch.as_tensor(batch["bought"])


def train(config):
    torch.manual_seed(0)
    net = Net(config["sizes"], 2 * len(NUMBERS), config["classes"])
    model = ray.train.torch.prepare_model(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rows = ray.train.get_dataset_shard("train")
    for _ in range(3):
        for batch in rows.iter_batches(batch_size=128, local_shuffle_buffer_size=4096):
            categories, numbers, labels = stacked(batch)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(categories, numbers), labels).backward()
            optimizer.step()
    right, count = torch.zeros(()), torch.zeros(())
    with torch.no_grad():
        for batch in ray.train.get_dataset_shard("test").iter_batches(batch_size=1024):
            categories, numbers, labels = stacked(batch)
            right += (net(categories, numbers).argmax(1) == labels).sum()
            count += len(labels)
    for total in (right, count):
        torch.distributed.all_reduce(total)
    if ray.train.get_context().get_world_rank() == 0:
        save_file(net.state_dict(), f"{config['folder']}/model.safetensors")
    return float(right / count)


if __name__ == "__main__":
    ray.init(num_cpus=4)
    rows = ray.data.read_parquet(sys.argv[1]).map_batches(with_missing, batch_format="pandas")
    parts = dict(zip(("train", "test"), rows.train_test_split(0.2, shuffle=True, seed=1)))
    encoding = Chain(
        SimpleImputer(NUMBERS, strategy="mean"),
        StandardScaler(NUMBERS),
        OrdinalEncoder(TEXTS),
        LabelEncoder("bought"),
    )
    parts["train"] = encoding.fit_transform(parts["train"])
    parts["test"] = encoding.transform(parts["test"])
    texts, labels = (encoding.preprocessors[n].stats_ for n in (2, 3))
    sizes = [len(texts[f"unique_values({name})"]) + 1 for name in TEXTS]
    encoding_file = f"{sys.argv[2]}/encoding"
    trainer = TorchTrainer(
        train,
        train_loop_config={
            "sizes": sizes,
            "classes": len(labels["unique_values(bought)"]),
            "folder": sys.argv[2],
        },
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=sys.argv[2]),
        datasets=parts,
    )
    result = trainer.fit()
    with open(encoding_file, "wb") as file:
        file.write(encoding.serialize())
    print(f"accuracy={result.return_value:.4f}")
