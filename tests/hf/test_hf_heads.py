"""Embeddings and generation as modules, against transformers by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.hf import bert, llama, lora
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.hf import Embedder, Generator

ROWS = [[2, 7, 8, 9, 3], [2, 9, 3]]
IDS = torch.tensor([[2, 7, 8, 9, 3], [2, 9, 3, 0, 0]])
MASK = (IDS != 0).long()


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("make", [bert, lambda: bert(""), llama, lambda: lora(llama())])
def test_a_vector_does_not_depend_on_padding(make: Any, pooling: Any) -> None:
    module = Embedder(make(), pooling).eval()
    with torch.no_grad():
        found = module(IDS, MASK)
        alone = torch.cat([module(torch.tensor([row])) for row in ROWS])
    assert found.shape == (2, 16)
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


def test_the_mean_of_the_last_hidden_states() -> None:
    model = bert("").eval()
    hidden = model(input_ids=IDS[:1]).last_hidden_state
    torch.testing.assert_close(Embedder(model)(IDS[:1]), hidden.mean(dim=1))
    lengths = Embedder(model, normalize=True)(IDS, MASK).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(2))


@pytest.mark.parametrize("make", [llama, lambda: lora(llama())])
def test_padded_texts_continue_as_they_do_alone(make: Any) -> None:
    module = Generator(make().eval(), max_new_tokens=6)
    with torch.no_grad():
        found = module(IDS, MASK)
        for row, given in zip(found, ROWS, strict=True):
            alone = module.model.generate(
                input_ids=torch.tensor([given]), max_new_tokens=6, do_sample=False, pad_token_id=0
            )[0, len(given) :]
            assert row.tolist() == [*alone.tolist(), *[0] * (6 - len(alone))]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Embedder(nn.Linear(1, 1)), "expected a model of transformers"),
        (lambda: Embedder(bert(), "max"), "pooling='max'"),  # type: ignore[arg-type]
        (lambda: Generator(bert()), "BertForSequenceClassification cannot generate"),
        (lambda: Generator(llama(), 0), "max_new_tokens=0"),
        (lambda: Generator(llama(), 2, {"custom_generate": "a/b"}), "'custom_generate' is not among"),
        (lambda: Generator(llama(), 2, {"trust_remote_code": True}), "'trust_remote_code' is not among"),
    ],
)
def test_what_cannot_work(make: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        make()
