"""What people bring: a torch dataset of texts of different lengths, its collate function, and a network."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import Dataset


class Words(Dataset):
    def __init__(self, rows, seed=0):
        draw = torch.Generator().manual_seed(seed)
        self.rows = []
        for i in range(rows):
            length, label = int(torch.randint(3, 20, (1,), generator=draw)), i % 2
            words = torch.randint(1 + 20 * label, 40 + 20 * label, (length,), generator=draw)
            self.rows.append((words, label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def collate(rows):
    words = [row[0] for row in rows]
    lengths = torch.tensor([len(row) for row in words])
    return (pad_sequence(words, batch_first=True), lengths), torch.tensor([row[1] for row in rows])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 16, padding_idx=0)
        self.rnn = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 2)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.rnn(packed)[1][-1])
