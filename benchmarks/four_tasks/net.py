"""A module of one's own: embeddings beside numbers."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, cardinalities, numbers, outputs):
        super().__init__()
        self.embed = nn.ModuleList(nn.Embedding(size, 16) for size in cardinalities)
        width = 16 * len(cardinalities) + numbers
        self.head = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, outputs))

    def forward(self, categories, numbers):
        embedded = [embed(column) for embed, column in zip(self.embed, categories.unbind(1))]
        return self.head(torch.cat([*embedded, numbers], 1))
