"""Models whose answer to a text depends on padding beside it; texts of one length share their passes then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from sparkdl.exceptions import ConfigError
from sparkdl.hf.outputs import is_adapted, is_model, takes_by_name, without_adapter

# kinds that read padding behind a text in spite of the mask: it is mixed in, hashed, pooled, or a neighbour,
# or decides which tokens are looked at
_READ_IT = frozenset(
    (
        *("big_bird", "bigbird_pegasus", "canine", "convbert", "cpmant", "fnet", "funnel", "mobilebert"),
        *("nystromformer", "reformer", "yoso"),
    )
)
# kinds that generate without positions or with a state, or prepare their inputs themselves, and pass over
# padding in front of a text all the same: it was tried with each of them
_PASS_OVER_IT = frozenset(
    (
        *("bailing_hybrid", "bamba", "bloom", "ctrl", "deepseek_v4", "falcon_h1", "falcon_mamba"),
        *("granitemoehybrid", "jamba", "kimi_linear", "mamba", "mamba2", "mpt", "nemotron_h", "olmo_hybrid"),
        *("openai-gpt", "phi3", "phimoe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "roc_bert"),
        *("zamba", "zamba2", "zaya"),
    )
)
# kinds that take positions, and have a state that remembers the padding
_REMEMBER_IT = frozenset(("minimax",))


def reads_behind(module: object) -> bool:
    """Return whether what a model says of a text depends on padding behind it."""
    if not is_model(module):
        return False
    inner = without_adapter(module)
    configs = [inner.config, getattr(inner.config, "encoder", None)]
    kinds = {getattr(config, "model_type", None) for config in configs}
    ends = _has_prompt(module) and type(inner).__name__.endswith("ForSequenceClassification")
    if ends and inner.config.model_type not in _masked():
        return True  # of vectors, which have no padding token, such a head takes the last one
    return bool(kinds & _READ_IT) or not takes_by_name(inner, ("attention_mask",))


def reads_before(model: Any) -> bool:
    """Return whether how a model continues a text depends on padding in front of it.

    ``generate`` counts positions by the mask for a model that takes them. Without them, and with a state of
    its own, a model counts columns, or goes on from the padding. Vectors that were learned as a prompt are in
    front of the padding, and so farther from the text.
    """
    from transformers import GenerationMixin

    if _has_prompt(model):
        return True
    inner = without_adapter(model)
    kind = inner.config.model_type
    if kind in _PASS_OVER_IT:
        return False
    own = type(inner).prepare_inputs_for_generation is not GenerationMixin.prepare_inputs_for_generation
    stateful = getattr(inner, "_is_stateful", False) or kind in _REMEMBER_IT
    return own or stateful or not takes_by_name(inner, ("position_ids", "attention_mask"))


def _has_prompt(model: Any) -> bool:
    """Return whether a model of ``peft`` puts vectors before a text, and not keys and values."""
    adapters = model.peft_config.values() if is_adapted(model) else ()
    prompts = [own.peft_type for own in adapters if own.is_prompt_learning]
    return any(kind not in ("PREFIX_TUNING", "CARTRIDGE") for kind in prompts)


def _masked() -> Mapping[str, str]:
    """Return the kinds of models that see a text to both sides, whose heads take the first token."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    found: Mapping[str, str] = MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return found


def by_length(mask: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield each length of texts, at least 1, and the numbers of the rows that have it."""
    lengths = (mask != 0).sum(dim=1).clamp(min=1)
    for length in sorted(set(lengths.tolist())):
        yield length, (lengths == length).nonzero()[:, 0]


def check_repeats(model: Any) -> None:
    """Check that a model says the same of a text each time: Reformer may draw, or fit to its first text."""
    config = without_adapter(model).config
    if config.model_type != "reformer" or "lsh" not in config.attn_layers:
        return
    for name in ("hash_seed", "num_buckets"):
        if getattr(config, name, None) is None:
            raise ConfigError(
                f"model: {type(model).__name__} has config.{name}=None: its hashes, and so its answers, "
                f"differ from call to call, or depend on the first text; build it with config.{name} set"
            )
