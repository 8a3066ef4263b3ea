"""The own loss of a language model with padded labels, by shares and micro-batches, against one batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from sparkdl.hf.outputs import own_step
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import Batch, evaluate, forward_backward
from sparkdl.nn.objective import StepObjective

ROWS, LENGTH = 6, 8


def model() -> nn.Module:
    torch.manual_seed(0)
    options = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    config = GPT2Config(vocab_size=20, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=1, **options)
    return GPT2LMHeadModel(config).double().train()


def batch() -> Batch:
    """Rows of 8, 5, 2 and 0 tokens whose labels count."""
    ids = torch.randint(0, 20, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    for row, kept in enumerate((8, 5, 2, 0, 0, 3)):
        labels[row, kept:] = -100
    return Batch({"input_ids": ids}, labels, None, ROWS)


@pytest.mark.parametrize("micro", [None, 1, 2])
@pytest.mark.parametrize("cut", [1, 3, 5])
def test_labels_that_do_not_count(cut: int, micro: int | None) -> None:
    whole, plain = batch(), model()
    expected = plain(**whole.inputs, labels=whole.label).loss
    expected.backward()
    gradient = torch.cat([p.grad.flatten() for p in plain.parameters()])
    objective, found = StepObjective(own_step), []
    for start, stop in ((0, cut), (cut, ROWS)):
        replica = FlatModule(model())
        result = forward_backward(replica, whole.narrow(start, stop - start), objective, micro)
        found.append((result.divisor, result.loss, replica.grad.clone()))
    assert [divisor for divisor, *_ in found] == [
        (whole.label[rows, 1:] != -100).sum() for rows in (slice(cut), slice(cut, ROWS))
    ]
    total = sum(divisor for divisor, *_ in found)
    assert sum(d * loss for d, loss, _ in found) / total == pytest.approx(expected.item())
    torch.testing.assert_close(sum(d * own for d, _, own in found) / total, gradient)


def test_an_evaluation_knows_the_divisor() -> None:
    replica = FlatModule(model())
    with replica.evaluating():
        assert evaluate(replica, batch(), StepObjective(own_step)).divisor == 7 + 4 + 1 + 2
