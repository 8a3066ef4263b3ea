"""Rows that differ in length, batched by tokens and in their order again; sampling that follows from rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from support.ways import Shipped
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.ml import TorchModel
from sparkdl.ml.stages import scorer as scoring
from sparkdl.ml.stages.forgiving import ForgivingScorer
from sparkdl.ml.stages.inference import inference_of
from sparkdl.ml.stages.scorer import Scorer
from sparkdl.ml.stages.sql import free_inputs, scorer_of
from sparkdl.nn.trace import infer
from sparkdl.serve import Predictor
from sparkdl.serve.served import ServedModel

shapes: list[tuple[int, ...]] = []
"""Of the batches that a module saw."""


class Total(nn.Module):
    """Adds the tokens of a text, and says how many there are."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return torch.stack([(input_ids * attention_mask).sum(1), attention_mask.sum(1)], dim=1).float()


class Same(nn.Module):
    """Returns a value for each token."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return input_ids.float()


COLUMNS = ["input_ids", "attention_mask"]


def scorer(module: nn.Module, **params: Any) -> Scorer:
    """Return what the tasks of a transform of tokens run."""
    example = {name: np.ones((2, 3), np.int64) for name in COLUMNS}
    model = TorchModel.from_module(
        module, example=example, featuresCols=COLUMNS, inputNames=COLUMNS, **params
    )
    model.signature = model.signature.of_any_length([True, True])
    shipped: Any = Shipped(model.module)
    return scorer_of(inference_of(model), shipped, free_inputs(model))


def texts(lengths: list[int], size: int) -> Iterator[tuple[pa.Array, ...]]:
    """Yield texts in Arrow batches of a size; null where the length is negative."""
    rows = [None if n < 0 else list(range(1, n + 1)) for n in lengths]
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        yield pa.array(some), pa.array([None if row is None else [1] * len(row) for row in some])


@pytest.fixture(autouse=True)
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(module: nn.Module, inputs: Any, numbers: Any) -> Any:
        shapes.append(tuple(inputs["input_ids"].shape))
        return infer(module, inputs, numbers)

    shapes.clear()
    monkeypatch.setattr(scoring, "infer", recorded)


@pytest.mark.parametrize("size", [7, 500, 3000])
def test_rows_of_one_length_share_a_pass_and_keep_their_places(size: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 3000).tolist()
    lengths[5] = lengths[2990] = -1
    made = scorer(Total(), maxBatchTokens=1000, handleInvalid="keep")
    found = [row for part in made(texts(lengths, size)) for row in part.to_pylist()]
    assert found == [None if n < 0 else [n * (n + 1) / 2, n] for n in lengths]
    assert all(rows * longest <= 1000 for rows, longest in shapes)
    assert sum(rows * longest for rows, longest in shapes) < 1.1 * sum(n for n in lengths if n > 0)


def test_a_row_longer_than_all_tokens_is_alone() -> None:
    found = [
        row for part in scorer(Total(), maxBatchTokens=10)(texts([4, 30, 5], 3)) for row in part.to_pylist()
    ]
    assert [row[1] for row in found] == [4, 30, 5]
    assert shapes == [(1, 30), (2, 5)]


def test_rows_and_tokens_both_limit_a_pass() -> None:
    list(scorer(Total(), inferenceBatchSize=3)(texts([50] * 7, 7)))
    assert shapes == [(3, 50), (3, 50), (1, 50)]
    shapes.clear()
    list(scorer(Total(), inferenceBatchSize=3, maxBatchTokens=100)(texts([50] * 3 + [10] * 4, 7)))
    assert shapes == [(2, 50), (2, 50), (3, 10)]
    shapes.clear()
    list(scorer(Total())(texts([64] * 100, 100)))
    assert shapes == [(64, 64), (36, 64)]
    with pytest.raises(ConfigError, match="maxBatchTokens"):
        scorer(Total(), maxBatchTokens=0)


def test_outputs_as_long_as_their_texts_are_an_error() -> None:
    with pytest.raises(ModelError, match="pad them to one length"):
        list(scorer(Same(), maxBatchTokens=10)(texts([10, 5, 5], 3)))


class TestSampling:
    """Draws follow from seed, text and number of a row."""

    @pytest.fixture(autouse=True)
    def _needs(self) -> None:
        pytest.importorskip("transformers")

    def write(self, lengths: list[int], size: int, at: int = 0, **options: Any) -> list[list[int]]:
        """Return the samples of texts, which come in batches of a size."""
        from support.hf import llama

        from sparkdl.hf import Generator

        seed = options.pop("seed", 0)
        made = scorer(Generator(llama(), 5, {"do_sample": True, **options}, seed=seed), maxBatchTokens=64)
        return [row for part in made.score(texts(lengths, size), at) for row in part.to_pylist()]

    @pytest.mark.parametrize(
        "options", [{}, {"temperature": 0.7, "top_p": 0.9, "top_k": 20}, {"num_beams": 2}]
    )
    def test_a_text_is_the_same_in_another_batch(self, options: Any) -> None:
        lengths = [3, 9, 3, 5, 3, 12, 1]
        found = self.write(lengths, 7, **options)
        torch.manual_seed(5)
        assert self.write(lengths, 2, **options) == found
        assert self.write(lengths[2:], 7, at=2, **options) == found[2:]
        assert len({str(found[n]) for n in (0, 2, 4)}) > 1  # the same text, other rows
        assert self.write(lengths, 7, seed=1, **options) != found

    def test_a_row_is_the_same_whoever_shares_its_pass(self) -> None:
        """In a Predictor, and in a server, which joins requests."""
        from support.hf import llama

        from sparkdl.hf import Generator

        module = Generator(llama().eval(), 5, {"do_sample": True})
        rows = np.full((5, 3), 7)
        expected = Predictor(module)(rows)
        assert len(np.unique(expected, axis=0)) > 1  # the same text, other rows
        np.testing.assert_array_equal(Predictor(module, batch_size=2)(rows), expected)
        served = ServedModel(
            TorchModel.from_module(module, example=rows, featuresCol="ids", predictionCol="new")
        )
        asked = [served.prepare(pa.table({"ids": rows[:n].tolist()})) for n in (2, 5)]
        for n, answer in zip((2, 5), served.run(asked), strict=True):
            assert answer.column("new").to_pylist() == expected[:n].tolist()

    def test_draws_have_the_odds_of_transformers(self) -> None:
        from sparkdl.hf.sampling import sampled

        scores = torch.tensor([[1.0, 2.0, 0.0, -1.0]]).repeat(20_000, 1)
        options = {"do_sample": True, "temperature": 0.5, "top_k": 3}
        chosen = sampled(None, options, list(range(len(scores))), 1)
        assert chosen["do_sample"] is False
        tokens = chosen["logits_processor"](torch.zeros(len(scores), 1, dtype=torch.long), scores).argmax(1)
        odds = torch.bincount(tokens, minlength=4) / len(tokens)
        expected = torch.softmax(torch.tensor([2.0, 4.0, 0.0, -torch.inf]), 0)
        torch.testing.assert_close(odds, expected, atol=0.01, rtol=0)

    def test_a_row_at_fault_changes_no_other(self) -> None:
        lengths = [3, 9, 4, 4]
        found = self.write(lengths, 4)
        from support.hf import llama

        from sparkdl.hf import Generator

        made = ForgivingScorer(scorer_with_names(scorer(Generator(llama(), 5, {"do_sample": True}))))
        given = [list(column) for column in next(texts(lengths, 4))]
        given[0][1] = pa.array([[100_000]])[0]
        given[1][1] = pa.array([[1]])[0]
        columns = tuple(pa.array([row.as_py() for row in column]) for column in given)
        rows = [row for part in made(iter([columns])) for row in part.to_pylist()]
        assert [row["o0"] for row in rows] == [found[0], None, *found[2:]]


def scorer_with_names(made: Scorer) -> Scorer:
    return type(made)(**{n: getattr(made, n) for n in made.__slots__} | {"names": ("o0",)})
