"""What a ModelOutput becomes, and when a model's own loss is taken."""

from __future__ import annotations

import pytest
import torch
from support.hf import bert, llama, lora
from torch import nn

from sparkdl.exceptions import ModelError
from sparkdl.hf.outputs import is_adapted, is_model, own_step, plain, takes_by_name, with_loss
from sparkdl.nn.batch import Batch, call
from sparkdl.nn.objective import StepObjective

IDS = torch.tensor([[2, 7, 8, 3], [2, 9, 3, 0]])
INPUTS = {"input_ids": IDS, "attention_mask": (IDS != 0).long()}
LABEL = torch.tensor([1, 0])


def test_a_head_gives_its_logits() -> None:
    model = bert().eval()
    found = call(model, INPUTS)
    assert torch.equal(found, model(**INPUTS).logits)


def test_a_model_without_a_head_gives_its_tensors_by_name() -> None:
    found = call(bert(""), INPUTS)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "last_hidden_state": (2, 4, 16),
        "pooler_output": (2, 16),
    }


def test_what_is_no_tensor_is_left_out() -> None:
    model = llama()
    output = model(**INPUTS)
    assert len(output) == 2  # logits, and a cache of keys and values
    assert torch.equal(plain(output), output.logits)
    assert set(with_loss(output)) == {"output"}


def test_other_outputs_stay_what_they_are() -> None:
    value = {"loss": 1, "logits": torch.ones(2)}
    assert plain(value) is value
    assert with_loss(value) is value


def test_the_step_is_the_models_own_loss() -> None:
    model = bert().eval()
    batch = Batch(INPUTS, LABEL, None, 2)
    expected = model(**INPUTS, labels=LABEL)
    found = StepObjective(own_step).evaluate(model, batch)
    assert torch.equal(found.loss, expected.loss)
    assert torch.equal(found.output, expected.logits)
    assert StepObjective(lambda module, b: module(**b.inputs, labels=b.label))(model, batch).extras == {}


def test_labels_by_name() -> None:
    model = bert("QuestionAnswering")
    label = {"start_positions": torch.tensor([1, 0]), "end_positions": torch.tensor([2, 1])}
    found = StepObjective(own_step).evaluate(model, Batch(INPUTS, label, None, 2))
    assert found.loss.item() == model(**INPUTS, **label).loss.item()
    assert set(found.output) == {"start_logits", "end_logits"}


@pytest.mark.parametrize(
    ("model", "batch", "expected"),
    [
        (bert, Batch(INPUTS, None, None, 2), "without a label column: give a label column"),
        (lambda: bert(""), Batch(INPUTS, None, None, 2), "take a model with a head"),
        (bert, Batch(INPUTS, LABEL, torch.ones(2), 2), "reduction='none'"),
        (bert, Batch(INPUTS, (LABEL, LABEL), None, 2), "takes its labels by name"),
    ],
)
def test_no_loss(model: object, batch: Batch, expected: str) -> None:
    with pytest.raises(ModelError, match=expected):
        own_step(model(), batch)  # type: ignore[operator]


def test_models_are_recognised() -> None:
    assert is_model(bert())
    assert is_model(lora(llama()))
    assert is_adapted(lora(llama()))
    assert not is_adapted(llama())
    assert not is_model(nn.Linear(1, 1))
    assert not is_model(bert)


def test_columns_that_are_arguments() -> None:
    assert takes_by_name(bert(), ["input_ids", "attention_mask", "token_type_ids"])
    assert takes_by_name(lora(llama()), ["input_ids", "attention_mask"])
    assert not takes_by_name(bert(), ["ids", "attention_mask"])
    assert not takes_by_name(nn.Linear(1, 1), ["input"])


def test_a_head_that_reads_the_last_token_takes_no_padding_there() -> None:
    """Padding before the text changes nothing in transformers; behind it, XLNet reads a token of it."""
    from transformers import XLNetConfig, XLNetForSequenceClassification

    torch.manual_seed(0)
    config = XLNetConfig(vocab_size=50, d_model=16, n_layer=2, n_head=2, d_inner=32, initializer_range=0.3)
    model = XLNetForSequenceClassification(config).eval()
    ids, mask = torch.randint(6, 50, (1, 4)), torch.ones(1, 4, dtype=torch.long)
    nothing = torch.zeros(1, 3, dtype=torch.long)
    alone = model(input_ids=ids, attention_mask=mask).logits

    def filled(*order: int) -> dict[str, torch.Tensor]:
        parts = [[nothing, ids], [nothing, mask]]
        both = [torch.cat([part[n] for n in order], 1) for part in parts]
        return {"input_ids": both[0], "attention_mask": both[1]}

    torch.testing.assert_close(call(model, filled(0, 1)), alone)
    assert not torch.allclose(model(**filled(1, 0)).logits, alone, atol=0.01)
    with pytest.raises(
        ModelError, match=r"XLNetForSequenceClassification reads the last .*paddingSide='left'"
    ):
        call(model, filled(1, 0))
