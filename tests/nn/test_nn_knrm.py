from functools import partial

import numpy as np
import pytest
import torch
from support.contract import check_model, size, train

from sparkdl import Dataset, Trainer
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.batch import Batch
from sparkdl.nn.models.knrm import KNRM, pairwise_step
from sparkdl.train import MaxEpoch

TERMS = 60


def searches(rows, random):
    """Queries of three terms; the better document has one of them, or its neighbour, more often."""
    query = random.integers(1, TERMS, (rows, 3))
    better, worse = (random.integers(1, TERMS, (rows, 8)) for _ in range(2))
    at = np.arange(rows)
    better[at, random.integers(8, size=rows)] = query[at, random.integers(3, size=rows)]
    worse = np.where((worse[:, :, None] == query[:, None]).any(2), 0, worse)
    return {"query": query, "better": better, "worse": worse}


def batch_of(rows, random):
    return Batch({k: torch.from_numpy(v) for k, v in searches(rows, random).items()}, None, None, rows)


def test_size_is_that_of_the_formula():
    with torch.device("meta"):
        model = KNRM(165_877)
    assert size(model) == 300 * 165_877 + 11 + 1


def test_contract():
    random = np.random.default_rng(0)
    inputs = batch_of(8, random).inputs
    check_model(partial(KNRM, TERMS, 8), inputs["query"], inputs["worse"])
    check_model(partial(KNRM, TERMS, 8, 21, 0.05, 0.01), inputs["query"], inputs["worse"])


def test_kernels_are_those_of_the_paper():
    model = KNRM(5)
    expected = [1.0, 0.9, 0.7, 0.5, 0.3, 0.1, -0.1, -0.3, -0.5, -0.7, -0.9]
    assert model.centres.tolist() == pytest.approx(expected, abs=1e-6)
    assert model.widths.tolist() == pytest.approx([0.001] + [0.1] * 10)


def test_score_is_that_of_the_equations():
    torch.manual_seed(0)
    model = KNRM(20, 6)
    query, document = torch.tensor([[3, 5]]), torch.tensor([[5, 7, 5]])
    features = torch.zeros(11)
    for term in query[0]:
        for k in range(11):
            cosines = torch.cosine_similarity(model.embed.weight[term], model.embed.weight[document[0]])
            soft = torch.exp(-((cosines - model.centres[k]) ** 2) / (2 * model.widths[k] ** 2)).sum()
            features[k] += 0.01 * soft.clamp(min=1e-10).log()
    assert model(query, document).item() == pytest.approx(torch.tanh(model.head(features)).item(), abs=1e-4)


def test_what_fills_up_does_not_count():
    model = KNRM(20, 6)
    score = model(torch.tensor([[3, 5]]), torch.tensor([[5, 7]]))
    filled = model(torch.tensor([[3, 0, 5]]), torch.tensor([[0, 5, 7, 0]]))
    assert torch.allclose(filled, score, atol=1e-6)


def test_learns_what_makes_a_document_better():
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    model = KNRM(TERMS, 16)
    train(model, pairwise_step, lambda: batch_of(200, random), steps=100, lr=2e-2)
    with torch.no_grad():
        assert (pairwise_step(model, batch_of(1000, random))["output"] > 0).float().mean() > 0.95


def test_trains_with_spark(spark):
    random = np.random.default_rng(0)
    torch.manual_seed(0)
    trainer = Trainer(
        KNRM(TERMS, 16),
        step=pairwise_step,
        optimizer=partial(torch.optim.Adam, lr=1e-1),
        batch_size=500,
        end_when=MaxEpoch(1),
        progress=False,
    )
    with Dataset.from_numpy(searches(6000, random), spark=spark) as data:
        trained = trainer.fit(data).module.eval()
    with torch.no_grad():
        assert (pairwise_step(trained, batch_of(1000, random))["output"] > 0).float().mean() > 0.9


def test_step_says_what_it_needs():
    with pytest.raises(ModelError, match=r"features=\{'query'"):
        pairwise_step(KNRM(5), Batch(torch.zeros(2), None, None, 2))


@pytest.mark.parametrize("arguments", [{"terms": 0}, {"kernels": 1}, {"width": 0.0}, {"exact_width": -1}])
def test_rejects_what_cannot_be(arguments):
    (name,) = arguments
    with pytest.raises(ConfigError, match=f"KNRM: {name}="):
        KNRM(**{"terms": 5, **arguments})
