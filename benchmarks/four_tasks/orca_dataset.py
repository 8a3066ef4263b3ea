"""BigDL Orca: the code that people bring. Each worker makes a loader, whose features are one flat tuple."""

import torch
from bigdl.orca import init_orca_context, stop_orca_context
from bigdl.orca.learn.metrics import Accuracy
from bigdl.orca.learn.pytorch import Estimator
from safetensors.torch import save_file
from torch.utils.data import DataLoader
from words import Net, Words, collate


def flat(rows):
    (words, lengths), labels = collate(rows)
    return words, lengths, labels


init_orca_context(cluster_mode="local", cores=2)
estimator = Estimator.from_torch(
    model=lambda config: Net(),
    optimizer=lambda model, config: torch.optim.Adam(model.parameters(), lr=1e-2),
    loss=torch.nn.CrossEntropyLoss(),
    metrics=[Accuracy()],
    backend="spark",
    workers_per_node=2,
)
estimator.fit(
    lambda config, size: DataLoader(Words(600), size, shuffle=True, collate_fn=flat), epochs=3, batch_size=64
)
scores = estimator.evaluate(
    lambda config, size: DataLoader(Words(200, seed=1), size, collate_fn=flat), batch_size=64
)
save_file(estimator.get_model().state_dict(), "words.safetensors")
print(f"accuracy={scores['Accuracy']:.4f}")
stop_orca_context()
