"""Small models of Hugging Face, and a tokeniser that is trained in a moment."""

from __future__ import annotations

import warnings
from functools import cache
from pydoc_data.topics import topics
from typing import Any

import torch

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = 300
TEXTS = [line for text in topics.values() for line in text.splitlines() if len(line) > 30][:400]
"""Lines of Python's manual."""


@cache  # training one twice gives two, for its threads count in any order
def tokenizer(vocabulary: int = VOCABULARY) -> Any:
    """Return a fast tokeniser of transformers."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=SPECIAL, show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def bert(head: str = "SequenceClassification", **options: Any) -> Any:
    """Return a small BERT; without dropout, so that training is a plain function."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **options},
    )
    torch.manual_seed(0)
    return getattr(transformers, f"BertFor{head}" if head else "BertModel")(config)


def llama(**options: Any) -> Any:
    """Return a small causal model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        **options,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def lora(model: Any, **options: Any) -> Any:
    """Return a model with adapters."""
    import peft

    chosen = {"r": 2, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name of yesterday
        return peft.get_peft_model(model, peft.LoraConfig(**chosen))
