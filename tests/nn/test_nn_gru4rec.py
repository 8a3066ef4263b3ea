import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.contract import check_model, size, train

from sparkdl import Dataset, Trainer
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.metrics import HitRatio
from sparkdl.nn.batch import Batch
from sparkdl.nn.models.gru4rec import GRU4Rec, bpr, next_items, sampled_softmax, session_step, top1
from sparkdl.train import MaxEpoch

ITEMS = 30
SESSION = torch.tensor([[3, 1, 4, 0, 0], [2, 7, 1, 8, 2]])
LENGTH = torch.tensor([3, 5])


def walks(rows, random, items=ITEMS):
    """Sessions that go through a circle of items, each by steps of its own: two items tell the next."""
    length = random.integers(2, 7, rows)
    walk = (random.integers(items, size=(rows, 1)) + random.integers(1, 4, (rows, 1)) * np.arange(7)) % items
    label = walk[np.arange(rows), length]
    session = np.where(np.arange(6) < length[:, None], walk[:, :6], 0)
    return {"session": session, "length": length}, label


def batch_of(rows, random):
    inputs, label = walks(rows, random)
    return Batch({k: torch.from_numpy(v) for k, v in inputs.items()}, torch.from_numpy(label), None, rows)


def test_size_is_that_of_the_formula():
    first, second = 3 * 100 * (64 + 100 + 2), 3 * 100 * (2 * 100 + 2)
    assert size(GRU4Rec(1000)) == 64 * 1000 + first + 101 * 1000
    assert size(GRU4Rec(1000, layers=2)) == 64 * 1000 + first + second + 101 * 1000


def test_contract():
    check_model(partial(GRU4Rec, 10, 4, 8), SESSION, LENGTH)
    check_model(partial(GRU4Rec, 10, 4, 8, layers=2, dropout=0.3), SESSION, LENGTH)


def test_what_fills_a_session_up_does_not_count():
    model = GRU4Rec(10, 4, 8)
    filled = SESSION.clone()
    filled[0, 3:] = 9
    assert model(SESSION, LENGTH).shape == (2, 10)
    assert torch.equal(model(filled, LENGTH), model(SESSION, LENGTH))


def test_a_session_without_items_has_the_scores_of_its_beginning():
    model = GRU4Rec(10, 4, 8)
    begin = model.head(torch.zeros(2, 8))
    for width in (1, 4):
        torch.testing.assert_close(model(torch.zeros(2, width).long(), torch.tensor([0, 0])), begin)
    inputs = {"session": torch.zeros(1, 3).long(), "length": torch.tensor([0])}
    with pytest.raises(ModelError, match="has nothing to predict"):
        session_step(model, Batch(inputs, torch.tensor([1]), None, 1))


def test_next_items():
    target, real = next_items(SESSION, LENGTH)
    assert [row[keep].tolist() for row, keep in zip(target, real, strict=True)] == [[1, 4], [7, 1, 8, 2]]
    target, real = next_items(SESSION, LENGTH, torch.tensor([5, 9]))
    assert [row[keep].tolist() for row, keep in zip(target, real, strict=True)] == [
        [1, 4, 5],
        [7, 1, 8, 2, 9],
    ]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_losses_are_those_of_the_paper():
    scores = torch.tensor([[1.0, 2.0, -1.0, 9.0]])
    wrong = torch.tensor([[False, True, True, False]])
    assert bpr(scores, wrong).item() == pytest.approx(-(math.log(sigmoid(-1)) + math.log(sigmoid(2))) / 2)
    expected = (sigmoid(1) + sigmoid(4) + sigmoid(-2) + sigmoid(1)) / 2
    assert top1(scores, wrong).item() == pytest.approx(expected)
    among = F.cross_entropy(scores[:, :3], torch.tensor([0]))
    assert sampled_softmax(scores, wrong).item() == pytest.approx(among.item())


def test_all_items_in_the_batch_make_the_sampled_softmax_exact():
    torch.manual_seed(0)
    model = GRU4Rec(3, 4, 8)
    batch = Batch({"session": torch.tensor([[0, 1], [2, 0]]), "length": torch.tensor([2, 2])}, None, None, 2)
    with_label = Batch(batch.inputs, torch.tensor([2, 1]), None, 2)
    losses = [session_step(model, with_label, loss)["loss"] for loss in ("sampled_softmax", "cross_entropy")]
    assert torch.allclose(*losses)
    assert losses[0].shape == (2,)


@pytest.mark.parametrize(
    ("loss", "accuracy"),  # the last item alone gives 1 / 3; TOP1 saturates with many wrong items
    [
        pytest.param("bpr", 0.9, marks=pytest.mark.whole),
        pytest.param("top1", 0.5, marks=pytest.mark.whole),
        pytest.param("sampled_softmax", 0.9, marks=pytest.mark.slow),  # exact where the batch has all items
        ("cross_entropy", 0.9),
    ],
)
def test_learns_how_sessions_go_on(loss, accuracy):
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    model = GRU4Rec(ITEMS, 16, 32)
    train(model, partial(session_step, loss=loss), lambda: batch_of(100, random), steps=300)
    test = batch_of(1000, random)
    with torch.no_grad():
        scores = model(**test.inputs)
    assert (scores.argmax(1) == test.label).float().mean() > accuracy


def test_trains_with_spark(spark):
    random = np.random.default_rng(0)
    torch.manual_seed(0)
    trainer = Trainer(
        GRU4Rec(12, 16, 32),
        step=partial(session_step, loss="cross_entropy"),
        optimizer=partial(torch.optim.Adam, lr=3e-2),
        metrics={"hits": (HitRatio(1), lambda output, label, _: (output, F.one_hot(label, 12)))},
        batch_size=400,
        end_when=MaxEpoch(2),
        progress=False,
    )
    with (
        Dataset.from_numpy(*walks(4800, random, 12), spark=spark) as data,
        Dataset.from_numpy(*walks(1000, random, 12), spark=spark) as test,
    ):
        trainer.fit(data)
        assert trainer.evaluate(test)["hits"] > 0.9


def test_a_session_without_anything_after_it_is_an_error():
    batch = Batch({"session": torch.tensor([[3, 0]]), "length": torch.tensor([1])}, None, None, 1)
    with pytest.raises(ModelError, match="a session of one item has nothing to predict"):
        session_step(GRU4Rec(5), batch)


def test_a_session_of_fewer_items_than_its_length_is_an_error():
    """The first item would be learned as the one after the last."""
    batch = Batch({"session": torch.tensor([[3, 1], [2, 0]]), "length": torch.tensor([2, 3])}, None, None, 2)
    with pytest.raises(ModelError, match="length is 3, and a session has 2 items"):
        session_step(GRU4Rec(5), batch)


def test_step_says_what_it_needs():
    with pytest.raises(ModelError, match=r"features=\{'session'"):
        session_step(GRU4Rec(5), Batch((SESSION, LENGTH), None, None, 2))
    with pytest.raises(ConfigError, match="loss='hinge': expected one of 'bpr', 'top1'"):
        session_step(GRU4Rec(5), Batch({}, None, None, 2), "hinge")


def test_rejects_what_cannot_be():
    with pytest.raises(ConfigError, match="GRU4Rec: items=0"):
        GRU4Rec(0)
    with pytest.raises(IndexError):
        GRU4Rec(5)(SESSION, LENGTH)
