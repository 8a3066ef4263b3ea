"""Architectures of ``transformers`` from tiny configurations, with their own losses, whole and with LoRA."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from compat.compare import ROWS, Entry, Program
from sparkdl.nn.batch import Batch

TEXT = [
    "albert",
    "bart",
    "bert",
    "big_bird",
    "biogpt",
    "bloom",
    "camembert",
    "codegen",
    "convbert",
    "ctrl",
    "data2vec-text",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "ernie",
    "esm",
    "falcon",
    "flaubert",
    "fnet",
    "funnel",
    "gemma",
    "gemma2",
    "glm",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "granite",
    "ibert",
    "jamba",
    "layoutlm",
    "llama",
    "longformer",
    "luke",
    "mamba",
    "mamba2",
    "mbart",
    "megatron-bert",
    "mistral",
    "mixtral",
    "mobilebert",
    "modernbert",
    "mpnet",
    "mpt",
    "mra",
    "mvp",
    "nemotron",
    "nystromformer",
    "olmo",
    "olmo2",
    "olmoe",
    "openai-gpt",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "plbart",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "roformer",
    "smollm3",
    "squeezebert",
    "stablelm",
    "starcoder2",
    "xglm",
    "xlm",
    "xlm-roberta",
    "xlnet",
    "xmod",
    "yoso",
    "t5",
    "mt5",
    "umt5",
    "switch_transformers",
    "longt5",
    "pegasus",
    "marian",
    "m2m_100",
    "blenderbot",
    "led",
    "prophetnet",
    "pegasus_x",
]
VISION = [
    "beit",
    "bit",
    "convnext",
    "convnextv2",
    "data2vec-vision",
    "deit",
    "dinov2",
    "efficientnet",
    "focalnet",
    "hiera",
    "ijepa",
    "levit",
    "mobilenet_v1",
    "mobilenet_v2",
    "mobilevit",
    "poolformer",
    "pvt",
    "regnet",
    "resnet",
    "segformer",
    "swin",
    "swinv2",
    "vit",
    "vit_msn",
]

_WIDTH = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size"), 32),
    "emb_dim": 32,
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner"), 48),
    **dict.fromkeys(("d_ff", "hidden_dim", "moe_intermediate_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"), 2),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    "num_decoder_attention_heads": 4,
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads",), 2),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "rotary_dim"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 64),
    **dict.fromkeys(("max_encoder_position_embeddings", "max_decoder_position_embeddings"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok",), 2),
    "vocab_size": 64, "entity_vocab_size": 64, "entity_emb_size": 16, "image_size": 32, "patch_size": 8,
    "state_size": 8, "mamba_expand": 2, "conv_kernel": 4, "bottleneck_size": 16, "intra_bottleneck_size": 16,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "num_labels": 3,
    "relative_attention_num_buckets": 8, "attention_window": 4, "num_expert_layers": 1, "expand": 2,
}  # fmt: skip
_OWN = {
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "xlnet": {"d_inner": 48},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "falcon": {"num_kv_heads": 4},
    "funnel": {"block_sizes": [1, 1], "d_inner": 48},
    "ctrl": {"dff": 48},
    "longformer": {"attention_window": [4, 4]},
    "led": {"attention_window": [4, 4]},
    "bit": {"hidden_sizes": [16, 16, 16, 16], "embedding_size": 16, "num_groups": 4},
    "efficientnet": {"width_coefficient": 0.2, "depth_coefficient": 0.2, "hidden_dim": 256},
    **{kind: {"decoder_start_token_id": 1} for kind in ("t5", "longt5", "switch_transformers")},
    "mpnet": {"relative_attention_num_buckets": 32},
    "esm": {"mask_token_id": 4, "vocab_size": 64},
    "nemotron": {"num_key_value_heads": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8},
    **{kind: {"patch_size": 2} for kind in ("convnext", "convnextv2")},
    **{
        kind: {"embed_dim": 16, "num_heads": [2] * 4, "window_size": 2, "patch_size": 2}
        for kind in ("swin", "swinv2")
    },
    "pvt": {"hidden_sizes": [16, 32, 40, 64]},
    "hiera": {"image_size": [32, 32], "query_stride": [2, 2], "masked_unit_size": [8, 8]},
}
_LENGTH = 12


def architectures() -> Iterator[Entry]:
    """Return an entry of each architecture."""
    for kind in TEXT + VISION:
        yield Entry("transformers", kind, partial(_program, kind, False))


def adapted() -> Iterator[Entry]:
    """Return an entry of each architecture with LoRA on all of its linear layers."""
    for kind in TEXT:
        yield Entry("transformers with LoRA", kind, partial(_program, kind, True))


def _program(kind: str, lora: bool, dtype: torch.dtype) -> Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head, model = _model(kind)
        if lora:
            import peft

            torch.manual_seed(1)
            config = peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear")
            model = peft.get_peft_model(model, config)
    draw = np.random.default_rng(4)
    if head == "image":
        features: Any = {"pixel_values": draw.normal(size=(ROWS, 3, 32, 32))}
        features = {
            n: v.astype(np.float64 if dtype == torch.float64 else np.float32) for n, v in features.items()
        }
    else:
        tokens = draw.integers(5, 64, size=(ROWS, _LENGTH))
        features = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
        if kind in ("xlm", "flaubert", "funnel") or "mamba" in kind:
            features = {"input_ids": tokens}
    if head in ("image", "class"):
        label = draw.integers(3, size=ROWS)
    else:  # a different number of tokens counts in each row
        label = np.where(np.arange(_LENGTH) < draw.integers(3, _LENGTH + 1, size=(ROWS, 1)), tokens, -100)
    optimizer = (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9})
    counted = {"causal": _predicted, "seq2seq": _labelled, "masked": _labelled}.get(head, len)
    return Program(model.to(dtype), features, label, _own_loss, {}, optimizer, counted)


def _labelled(label: np.ndarray) -> float:
    return float((label != -100).sum())


def _predicted(label: np.ndarray) -> float:
    return _labelled(label[:, 1:])


def _own_loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    return module(**batch.inputs, labels=batch.label).loss


def _model(kind: str) -> tuple[str, Any]:
    """Return the first head that an architecture has, and a tiny model."""
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto as auto

    heads = {
        "causal": (auto.MODEL_FOR_CAUSAL_LM_MAPPING, "causal"),
        "masked": (auto.MODEL_FOR_MASKED_LM_MAPPING, "masked"),
        "seq2seq": (auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, "seq2seq"),
        "class": (auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, "class"),
        "image": (auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, "image"),
    }
    order = ("image",) if kind in VISION else ("seq2seq", "masked", "causal", "class")
    config = _tiny(AutoConfig.for_model(kind), kind)
    for name in order:
        mapping, head = heads[name]
        if type(config) in mapping:
            cls = mapping[type(config)]
            cls = cls[0] if isinstance(cls, tuple) else cls
            with torch.device("meta"):
                size = sum(p.numel() for p in cls(config).parameters())
            if size > 4_000_000:
                raise ValueError(f"{size:,} parameters: no tiny configuration")
            torch.manual_seed(0)
            return head, cls(config)
    raise ValueError("no head with a loss")


def _tiny(default: Any, kind: str) -> Any:
    known = default.to_dict()
    small = {
        n: v
        for n, v in _WIDTH.items()
        if n in known and known[n] is not None and not isinstance(known[n], list)
    }
    small |= {n: v for n, v in _WIDTH.items() if n.endswith("token_id") and n in known}
    small |= {
        name: 0.0
        for name, value in known.items()
        if ("drop" in name or name.endswith("_pdrop")) and isinstance(value, float)
    }
    for name in ("hidden_sizes", "embed_dims", "neck_hidden_sizes"):
        if isinstance(known.get(name), list):
            small[name] = [16 * (n + 1) for n in range(len(known[name]))]
    if isinstance(known.get("depths"), list):
        small["depths"] = [1] * len(known["depths"])
    for name in ("is_decoder",):
        if name in known and kind in ("bert",):
            small[name] = False
    return type(default)(**{"num_labels": 3} | small | _OWN.get(kind, {}))
