"""Configurations that a file may hold: those from which a model is built without other code or files.

A configuration can do more than set sizes: ``auto_map`` names code of a repository, an attention
implementation may be one that is fetched, and a backbone's weights may be. Such entries are refused, at any
depth, when a model is saved and again when it is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sparkdl.exceptions import ConfigError

_REFUSED = frozenset(
    (
        *("auto_map", "trust_remote_code", "custom_pipelines", "custom_generate", "quantization_config"),
        *("backbone", "backbone_kwargs", "use_timm_backbone", "use_pretrained_backbone"),
    )
)
_TYPES_REFUSED = frozenset(("timm_backbone", "timm_wrapper"))
_IMPLEMENTATIONS = frozenset((None, "eager", "sdpa"))

ADAPTERS = frozenset(("LORA", "IA3", "LOHA", "LOKR", "PREFIX_TUNING", "PROMPT_TUNING"))
"""Kinds of adapters that are saved."""

_ADAPTER_FIELDS = frozenset(
    (
        *("peft_type", "task_type", "inference_mode", "target_modules", "exclude_modules", "modules_to_save"),
        *("layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "bias"),
        *("r", "lora_alpha", "lora_dropout", "use_rslora", "init_lora_weights", "use_dora", "lora_bias"),
        *("layer_replication", "trainable_token_indices", "target_parameters", "ensure_weight_tying"),
        *("feedforward_modules", "init_ia3_weights", "alpha", "rank_dropout", "module_dropout"),
        *("use_effective_conv2d", "decompose_both", "decompose_factor", "rank_dropout_scale"),
        *("init_weights", "num_virtual_tokens", "token_dim", "num_transformer_submodules"),
        *("num_attention_heads", "num_layers", "prefix_projection", "encoder_hidden_size"),
    )
)


def check_config(values: Any, where: str = "config") -> None:
    """Check a model's configuration."""
    if isinstance(values, list | tuple):
        for index, value in enumerate(values):
            check_config(value, f"{where}[{index}]")
    if not isinstance(values, Mapping):
        return
    for name, value in values.items():
        place = f"{where}.{name}"
        fetched = str(name).endswith("_implementation") and value not in _IMPLEMENTATIONS
        other = name == "model_type" and value in _TYPES_REFUSED
        if fetched or other or (name in _REFUSED and value not in (None, False)):
            raise ConfigError(
                f"{place}={value!r:.100}: a saved model is built without remote code, fetched weights or "
                "kernels, so its configuration may not name them; take a model of transformers itself, with "
                "attn_implementation='sdpa' or 'eager'",
                code="config-source",
            )
        check_config(value, place)


def check_adapter(values: Mapping[str, Any]) -> None:
    """Check the configuration of an adapter."""
    kind = values.get("peft_type")
    if kind not in ADAPTERS:
        raise ConfigError(
            f"peft_type={kind!r:.50}: expected one of {', '.join(sorted(ADAPTERS))}; merge others into the "
            "model first, with merge_and_unload()",
            code="config-source",
        )
    unknown = sorted(set(values) - _ADAPTER_FIELDS)
    if unknown:
        raise ConfigError(
            f"adapter option {unknown[0]}={values[unknown[0]]!r:.100} cannot be saved; merge the adapter "
            "into the model first, with merge_and_unload()",
            code="config-source",
        )
    for name, value in values.items():
        _check_patterns(name, value)


_MOST_REPEATS, _MOST_CHOICES, _MOST_ALTERNATIVES = 3, 5, 20
_LITERAL = re.compile(r"\\.|\[\^?\]?[^\]]*\]", re.DOTALL)  # an escaped character, or a set of characters


def _check_patterns(place: str, value: Any) -> None:
    """Check regular expressions that ``peft`` matches with names of layers: it takes most texts for one."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_patterns(place, key)
            _check_patterns(f"{place}.{key}", inner)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            _check_patterns(place, inner)
    elif isinstance(value, str):
        plain = _LITERAL.sub("x", value)
        repeats = len(re.findall(r"[*+{]", plain))
        choices = repeats + plain.count("(") + len(re.findall(r"(?<![(*+?}])\?", plain))
        many = repeats > _MOST_REPEATS or choices > _MOST_CHOICES or plain.count("|") > _MOST_ALTERNATIVES
        if many or re.search(r"\)[*+{]", plain):
            raise ConfigError(
                f"adapter option {place}: the pattern {value!r:.100} repeats a group, or has more than "
                f"{_MOST_REPEATS} repeats, {_MOST_CHOICES} groups, repeats and question marks or "
                f"{_MOST_ALTERNATIVES} alternatives, and could take for ever; list the names of the modules",
                code="config-source",
            )
