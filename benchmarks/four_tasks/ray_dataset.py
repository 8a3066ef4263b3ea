"""Ray Train: the code that people bring."""

import os

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from safetensors.torch import save_file
from torch.utils.data import DataLoader
from words import Net, Words, collate


def train(config):
    torch.manual_seed(0)
    data, held = Words(600), Words(200, seed=1)
    loader = DataLoader(data, 32, shuffle=True, collate_fn=collate)
    loader = ray.train.torch.prepare_data_loader(loader)
    net = Net()
    model = ray.train.torch.prepare_model(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for (words, lengths), labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(words, lengths), labels).backward()
            optimizer.step()
    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    with torch.no_grad():
        (words, lengths), labels = collate([held[n] for n in range(rank, len(held), size)])
        right = (net(words, lengths).argmax(1) == labels).sum().float()
    torch.distributed.all_reduce(right)
    if rank == 0:
        save_file(net.state_dict(), f"{config['folder']}/words.safetensors")
    return right.item() / len(held)


if __name__ == "__main__":
    ray.init(num_cpus=4)
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": os.getcwd()},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=os.getcwd()),
    )
    print(f"accuracy={trainer.fit().return_value:.4f}")
