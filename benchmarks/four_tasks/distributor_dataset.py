"""TorchDistributor: the code that people bring."""

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession


def train():
    import torch
    import torch.distributed as dist
    from safetensors.torch import save_file
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler
    from words import Net, Words, collate

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data, held = Words(600), Words(200, seed=1)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 32, sampler=sampler, collate_fn=collate)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (words, lengths), labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(words, lengths), labels).backward()
            optimizer.step()
    rank, size = dist.get_rank(), dist.get_world_size()
    with torch.no_grad():
        (words, lengths), labels = collate([held[n] for n in range(rank, len(held), size)])
        right = (model.module(words, lengths).argmax(1) == labels).sum().float()
    dist.all_reduce(right)
    if rank == 0:
        save_file(model.module.state_dict(), "words.safetensors")
    dist.destroy_process_group()
    return right.item() / len(held)


spark = SparkSession.builder.master("local[2]").getOrCreate()
accuracy = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(train)
print(f"accuracy={accuracy:.4f}")
