"""Calls of models of Hugging Face, and their outputs.

This is the one place that knows a ``ModelOutput``. Classes are recognised if the program itself has
imported them; this module imports none.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sparkdl.exceptions import ModelError

if TYPE_CHECKING:
    from sparkdl.nn.batch import Batch

_OUTPUTS = (("transformers.utils.generic", "ModelOutput"),)
_MODELS = (("transformers.modeling_utils", "PreTrainedModel"), ("peft.peft_model", "PeftModel"))


def is_model(thing: object) -> bool:
    """Return whether something is a model of ``transformers`` or ``peft``, which may know its own loss."""
    return isinstance(thing, nn.Module) and _is_of(thing, _MODELS)


def is_adapted(thing: object) -> bool:
    """Return whether something is a model of ``peft``."""
    return isinstance(thing, nn.Module) and _is_of(thing, _MODELS[1:])


def without_adapter(model: Any) -> Any:
    """Return the model of ``transformers`` that one of ``peft`` adapts; any other as it is."""
    return model.get_base_model() if is_adapted(model) else model


def takes_by_name(thing: object, names: Iterable[str]) -> bool:
    """Return whether something is such a model, and names are all those of arguments of its forward method.

    Columns with such names are given to it by name.
    """
    if not is_model(thing):
        return False
    return set(names) <= inspect.signature(without_adapter(thing).forward).parameters.keys()


def get_ready(module: nn.Module, inputs: Any) -> None:
    """Check a model's inputs, and let it go on as it was configured."""
    if is_model(module):
        _check_ends(module, inputs)
        as_configured(module)


def as_configured(model: Any) -> None:
    """Undo what a short batch did to BigBird, which turns to full attention for it, and would stay so."""
    base = without_adapter(model).base_model
    for part in (base, getattr(base, "encoder", None)):
        turn: Any = getattr(part, "set_attention_type", None)
        config: Any = getattr(part, "config", None)
        if turn is not None and not config.is_decoder:
            turn(config.attention_type)


def _check_ends(module: nn.Module, inputs: Any) -> None:
    """Check that no row ends with padding for a model whose head reads the last token of each, as XLNet's."""
    kind = getattr(getattr(module, "sequence_summary", None), "summary_type", "")
    if kind != "last" or not isinstance(inputs, Mapping):
        return
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2 and bool((mask[:, -1:] == 0).any()):
        name = type(without_adapter(module)).__name__
        raise ModelError(
            f"{name} reads the last token of each row, and rows end with padding: what it says would depend "
            "on the rows beside them. Fill rows up on the left: HFTokenizer(padding='max_length', "
            "paddingSide='left')",
            code="model-input",
        )


def plain(output: Any) -> Any:
    """Return a module's output without Hugging Face's class around it; other outputs stay as they are.

    Of a ``ModelOutput`` it is the logits if there are any, else its tensors without the loss: one, or a dict.
    """
    if isinstance(output, Tensor) or not _is_of(output, _OUTPUTS):
        return output
    if isinstance(output.get("logits"), Tensor):
        return output["logits"]
    tensors = {name: value for name, value in output.items() if isinstance(value, Tensor) and name != "loss"}
    return next(iter(tensors.values())) if len(tensors) == 1 else tensors


def with_loss(result: Any) -> Any:
    """Return a training step's result, a ``ModelOutput`` as a dict of its loss and output."""
    if isinstance(result, Tensor) or not _is_of(result, _OUTPUTS):
        return result
    loss = {"loss": result["loss"]} if isinstance(result.get("loss"), Tensor) else {}
    return {**loss, "output": plain(result)}


def own_step(module: nn.Module, batch: Batch) -> Any:
    """Run a model on a batch with its label, so that it computes its own loss.

    A label column is the argument ``labels``; label columns by name are arguments by these names.
    """
    name = type(module).__name__
    if batch.weight is not None:
        raise ModelError(
            f"the Dataset has a weight column, but the own loss of {name} is a mean over the batch; give "
            "loss=, such as torch.nn.CrossEntropyLoss(reduction='none')",
            code="model-output",
        )
    get_ready(module, batch.inputs)
    result = with_loss(_call(module, batch.inputs, _labels(name, batch.label)))
    if not isinstance(result, Mapping) or "loss" not in result:
        given = "with the label" if batch.label is not None else "without a label column"
        raise ModelError(
            f"{name} returned no loss when it was called {given}: give a label column, take a model with a "
            "head, such as AutoModelForSequenceClassification, or give loss=",
            code="model-output",
        )
    return result


def _labels(name: str, label: Any) -> dict[str, Any]:
    if label is None:
        return {}
    if isinstance(label, Tensor):
        return {"labels": label}
    if isinstance(label, Mapping):
        return dict(label)
    raise ModelError(
        f"{name} takes its labels by name: give label columns as a dict, such as "
        "label={'start_positions': 'start', 'end_positions': 'end'}",
        code="model-input",
    )


def _call(module: nn.Module, inputs: Any, labels: Mapping[str, Any]) -> Any:
    if isinstance(inputs, Tensor):
        return module(inputs, **labels)
    if isinstance(inputs, Mapping):
        return module(**inputs, **labels)
    return module(*inputs, **labels)


def _is_of(thing: object, classes: tuple[tuple[str, str], ...]) -> bool:
    for module, name in classes:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(thing, kind):
            return True
    return False
