from functools import partial

import numpy as np
import pytest
import torch
from support.contract import auc, check_model, size

from sparkdl import Dataset, Trainer
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.losses import binary_cross_entropy
from sparkdl.nn.models.dlrm import DLRM
from sparkdl.train import MaxEpoch

CRITEO_KAGGLE = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306),
    *(10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)


def test_size_on_criteo_is_that_of_the_paper():
    with torch.device("meta"):
        model = DLRM(CRITEO_KAGGLE, numbers=13)
    assert round(size(model) / 1e6) == 541  # "approximately 540M"
    bottom = (13 * 512 + 512) + (512 * 256 + 256) + (256 * 64 + 64) + (64 * 16 + 16)
    top = ((16 + 27 * 26 // 2) * 512 + 512) + (512 * 256 + 256) + (256 + 1)
    assert size(model) == 16 * sum(CRITEO_KAGGLE) + bottom + top


def test_contract():
    make = partial(DLRM, (3, 4), 2, 4, (16,), (32,))
    check_model(make, torch.randn(8, 2), torch.randint(3, (8, 2)))


def test_interaction_takes_each_pair_once():
    torch.manual_seed(0)
    model = DLRM((3, 4), 2, 4, (8,), ())
    seen = []
    model.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    numbers, categories = torch.randn(1, 2), torch.tensor([[2, 3]])
    model(numbers, categories)
    dense = model.below(numbers)[0]
    first, second = (table.weight[row] for table, row in zip(model.embed.tables, (2, 3), strict=True))
    expected = torch.cat([dense, torch.stack([first @ dense, second @ dense, second @ first])])
    assert torch.allclose(seen[0][0], expected)


def test_trains_with_spark_on_clicks(spark):
    random = np.random.default_rng(0)
    tastes = random.standard_normal((2, 10, 2))
    categories = random.integers(10, size=(10_000, 2))
    numbers = random.standard_normal((10_000, 2)).astype(np.float32)
    agreement = (tastes[0, categories[:, 0]] * tastes[1, categories[:, 1]]).sum(1)
    label = (2 * agreement + 2 * numbers[:, 0] > 0).astype(np.float32)
    torch.manual_seed(0)
    trainer = Trainer(
        DLRM((10, 10), 2, 8, (16,), (32, 16)),
        loss=binary_cross_entropy,
        optimizer=partial(torch.optim.Adam, lr=4e-2),
        batch_size=400,
        end_when=MaxEpoch(1),
        progress=False,
    )
    with Dataset.from_numpy([numbers[:8000], categories[:8000]], label[:8000], spark=spark) as data:
        model = trainer.fit(data).module.eval()
    with torch.no_grad():
        score = model(torch.from_numpy(numbers[8000:]), torch.from_numpy(categories[8000:]))
    assert auc(score, torch.from_numpy(label[8000:])) > 0.95


@pytest.mark.parametrize("arguments", [{"numbers": 0}, {"embedding": 0}, {"bottom": (0,)}, {"top": (8, -1)}])
def test_rejects_sizes_that_cannot_be(arguments):
    (name,) = arguments
    with pytest.raises(ConfigError, match=f"DLRM: {name}="):
        DLRM(**{"cardinalities": (3,), "numbers": 1, **arguments})


def test_the_order_of_inputs_matters():
    with pytest.raises(ModelError, match="numbers has shape"):
        DLRM((3, 4), 1)(torch.zeros(2, 2), torch.zeros(2, 1).long())
