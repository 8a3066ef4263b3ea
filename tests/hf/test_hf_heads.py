"""Embeddings and generation as modules, against transformers by hand."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.hf import bert, llama, lora
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl.exceptions import ConfigError
from sparkdl.hf import Embedder, Generator, heads

ROWS = [[2, 7, 8, 9, 3], [2, 9, 3]]
IDS = torch.tensor([[2, 7, 8, 9, 3], [2, 9, 3, 0, 0]])
MASK = (IDS != 0).long()


def prompted(model: Any) -> Any:
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name of yesterday
        return peft.get_peft_model(
            model, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
        )


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("make", [bert, lambda: bert(""), llama, lambda: lora(llama())])
def test_a_vector_does_not_depend_on_padding(make: Any, pooling: Any) -> None:
    module = Embedder(make(), pooling).eval()
    with torch.no_grad():
        found = module(IDS, MASK)
        alone = torch.cat([module(torch.tensor([row])) for row in ROWS])
    assert found.shape == (2, 16)
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_vector_does_not_depend_on_the_side_of_the_padding(pooling: Any) -> None:
    model = llama().eval()
    ids = torch.tensor([ROWS[0], [0, 0, *ROWS[1]]])
    with torch.no_grad():
        found = Embedder(model, pooling)(ids, (ids != 0).long())
        for vector, row in zip(found, ROWS, strict=True):
            hidden = model.base_model(input_ids=torch.tensor([row])).last_hidden_state[0]
            expected = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
            torch.testing.assert_close(vector, expected, rtol=1e-4, atol=1e-5)


def test_samples_of_a_trainer_do_not_depend_on_batches(spark: Any) -> None:
    module = Generator(llama().eval(), 5, {"do_sample": True})
    rows = np.full((5, 3), 7)
    with torch.no_grad():
        expected = module(torch.from_numpy(rows)).numpy()
    assert len(np.unique(expected, axis=0)) > 1  # the same text, other rows
    trainer = Trainer(module, loss=nn.MSELoss(), optimizer=torch.optim.SGD, progress=False)
    for partitions, size in ((1, None), (1, 2), (2, 2)):
        with Dataset.from_numpy(rows, spark=spark, num_partitions=partitions) as data:
            np.testing.assert_array_equal(trainer.predict(data, batch_size=size), expected)


def test_the_mean_of_the_last_hidden_states() -> None:
    model = bert("").eval()
    hidden = model(input_ids=IDS[:1]).last_hidden_state
    torch.testing.assert_close(Embedder(model)(IDS[:1]), hidden.mean(dim=1))
    lengths = Embedder(model, normalize=True)(IDS, MASK).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(2))


def xlnet() -> Any:
    """Return a small model that passes over no padding when it generates."""
    from transformers import XLNetConfig, XLNetLMHeadModel

    torch.manual_seed(0)
    return XLNetLMHeadModel(
        XLNetConfig(vocab_size=300, d_model=16, n_layer=2, n_head=2, d_inner=32, pad_token_id=0)
    )


def recurrent_gemma() -> Any:
    """Return a small model whose state lies in its modules; the token of its padding has an embedding."""
    made = other("RecurrentGemma", **SMALL, num_key_value_heads=1, lru_width=16, attention_window_size=8)
    return embedded(made)


def minimax() -> Any:
    """Return a small model whose linear attention forgets the padding once a text goes on."""
    kinds = ["linear_attention", "full_attention"]
    return embedded(other("MiniMax", **SMALL, num_key_value_heads=2, num_local_experts=2, layer_types=kinds))


def embedded(model: Any) -> Any:
    """Let weights be large, and padding count where a model does not pass over it."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(10 if weight.ndim > 1 else 1)
        model.get_input_embeddings().weight[0].normal_()
    return model


@pytest.mark.parametrize("make", [recurrent_gemma, minimax])
def test_texts_of_models_that_do_not_pass_over_padding(make: Any) -> None:
    """Expected is what the model says of all tokens at once, without what it remembers."""
    module = Generator(make().eval(), max_new_tokens=8, options={"eos_token_id": -1})
    draw = torch.Generator().manual_seed(2)
    texts = [torch.randint(4, 60, (n,), generator=draw) for n in (6, 9, 2)]
    ids = nn.utils.rnn.pad_sequence(texts, True)
    with torch.no_grad():
        found = module(ids, (ids != 0).long())
        for row, text in zip(found, texts, strict=True):
            whole = text
            for _ in range(8):
                logits = module.model(input_ids=whole[None], use_cache=False).logits[0, -1]
                whole = torch.cat([whole, logits.argmax(keepdim=True)])
            assert row.tolist() == whole[len(text) :].tolist()
        one = module(texts[0][:1][None])
        module(texts[1][None])
        assert torch.equal(module(texts[0][:1][None]), one)


@pytest.mark.parametrize("make", [llama, lambda: lora(llama()), xlnet])
def test_padded_texts_continue_as_they_do_alone(make: Any) -> None:
    module = Generator(make().eval(), max_new_tokens=6)
    with torch.no_grad():
        found = module(IDS, MASK)
        for row, given in zip(found, ROWS, strict=True):
            alone = module.model.generate(
                input_ids=torch.tensor([given]), max_new_tokens=6, do_sample=False, pad_token_id=0
            )[0, len(given) :]
            assert row.tolist() == [*alone.tolist(), *[0] * (6 - len(alone))]


def translator(kind: str) -> Any:
    """Return a small model with an encoder: Bart counts positions, T5 has padding 0 and the end 1."""
    import transformers as hf

    torch.manual_seed(0)
    if kind == "t5":
        small = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        config = hf.T5Config(vocab_size=20, **small, decoder_start_token_id=0, initializer_factor=3.0)
        return hf.T5ForConditionalGeneration(config).eval()
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in LAYERS.items()}
    own = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    config = hf.BartConfig(
        vocab_size=20,
        d_model=16,
        **sides,
        max_position_embeddings=32,
        init_std=0.7,
        forced_bos_token_id=0,
        **own,
    )
    return hf.BartForConditionalGeneration(config).eval()


LAYERS = {"layers": 2, "attention_heads": 2, "ffn_dim": 32}


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"num_beams": 4, "length_penalty": -1.0}], ids=str)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_texts_of_an_encoder_are_answered_as_they_are_alone(
    kind: str, side: str, options: dict[str, Any]
) -> None:
    model = translator(kind)
    padding, draw = model.config.pad_token_id, torch.Generator().manual_seed(1)
    texts = [torch.randint(3, 20, (n,), generator=draw) for n in (3, 9, 5, 12, 9, 1)]
    alone = [
        model.generate(
            input_ids=t[None], attention_mask=torch.ones_like(t)[None], max_new_tokens=8, **options
        )[0, 1:]
        for t in texts
    ]
    of = partial(nn.utils.rnn.pad_sequence, batch_first=True, padding_side=side)
    ids, mask = of(texts, padding_value=padding), of([torch.ones_like(text) for text in texts])
    expected = nn.utils.rnn.pad_sequence([*alone, torch.zeros(8).long()], True, padding)[:-1]
    assert torch.equal(Generator(model, 8, options)(ids, mask), expected)


@pytest.mark.parametrize(
    "options",
    [{"repetition_penalty": 1e6}, {"no_repeat_ngram_size": 1}, {"num_beams": 2, "no_repeat_ngram_size": 1}],
    ids=str,
)
def test_tokens_that_fill_a_row_up_are_none_of_the_text(options: dict[str, Any]) -> None:
    """The token of the padding may follow, as where a model has no other than its end for that."""
    model = llama().eval()
    given = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    alone = [
        model.generate(input_ids=torch.tensor([row]), pad_token_id=0, **given, **options)[
            0, len(row) :
        ].tolist()
        for row in (*ROWS, ROWS[1])
    ]
    padding = alone[1][0]
    assert padding not in ROWS[1]
    ids = torch.tensor([*IDS.tolist(), IDS[1].tolist()])
    with torch.no_grad():
        found = Generator(model, 4, {**options, "pad_token_id": padding})(ids, (ids != 0).long())
    assert found.tolist() == alone
    model.generation_config.update(**options)
    with torch.no_grad():
        assert Generator(model, 4, {"pad_token_id": padding})(ids, (ids != 0).long()).tolist() == alone


def test_a_models_own_settings_of_generation_count() -> None:
    """Several sequences are not asked for; beams share no cache; a cutoff leaves the likeliest token."""
    model = llama().eval()
    ids = torch.tensor([[2, *[5] * 20, 7], [2, *[5] * 20, 9]])
    with torch.no_grad():
        expected = Generator(model, 4, {"num_beams": 3})(ids)
        model.generation_config.update(num_beams=3, num_return_sequences=2, return_dict_in_generate=True)
        assert torch.equal(Generator(model, 4)(ids), expected)
        sampled = Generator(model, 4, {"do_sample": True})(ids)
        assert torch.equal(Generator(model, 4, {"do_sample": True, "num_beams": 3})(ids), sampled)
        cut = llama().eval()
        cut.generation_config.epsilon_cutoff = 0.999
        assert torch.equal(Generator(cut, 4, {"do_sample": True})(ids), Generator(llama().eval(), 4)(ids))


def other(kind: str, **options: Any) -> Any:
    """Return a small causal model of another family."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=64, pad_token_id=0, bos_token_id=2, eos_token_id=3, **options
    )
    return getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config)


SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
DECODERS = {
    "llama": (llama, True),
    "lora": (lambda: lora(llama()), True),
    "gpt2": (lambda: other("GPT2", n_embd=16, n_layer=2, n_head=2, n_positions=64), True),
    "bloom": (lambda: other("Bloom", hidden_size=16, n_layer=2, n_head=2), True),
    "opt": (
        lambda: other("OPT", **SMALL, ffn_dim=32, max_position_embeddings=64, word_embed_proj_dim=16),
        True,
    ),
    "gpt neox": (lambda: other("GPTNeoX", **SMALL, max_position_embeddings=64), True),
    "mistral": (lambda: other("Mistral", **SMALL, num_key_value_heads=2, sliding_window=8), False),
    "qwen": (lambda: other("Qwen2", **SMALL, num_key_value_heads=1), True),
    "gemma": (lambda: other("Gemma2", **SMALL, num_key_value_heads=1, head_dim=8, sliding_window=8), False),
    "mamba": (lambda: other("Mamba", hidden_size=16, state_size=4, num_hidden_layers=2), False),
}


@pytest.mark.parametrize("name", DECODERS)
def test_texts_that_begin_alike_continue_as_they_do_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shares = DECODERS[name]
    module = Generator(make().eval(), max_new_tokens=5)
    draw = torch.Generator().manual_seed(0)
    instruction = torch.randint(4, 16, (20,), generator=draw).tolist()
    texts = [[*instruction, *torch.randint(4, 16, (n,), generator=draw).tolist()] for n in (1, 9, 4, 30)]
    width = 53  # of rows, which a server may fill up further than the longest
    ids = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    caches: list[Any] = []
    shared_prefix = heads.shared_prefix

    def noted(*args: Any) -> Any:
        caches.append(shared_prefix(*args))
        return caches[-1]

    monkeypatch.setattr(heads, "shared_prefix", noted)
    with torch.no_grad():
        found = module(ids, (ids != 0).long())
        for row, text in zip(found, texts, strict=True):
            alone = module.model.generate(
                input_ids=torch.tensor([text]), max_new_tokens=5, do_sample=False, pad_token_id=0
            )[0, len(text) :]
            assert row.tolist() == [*alone.tolist(), *[0] * (5 - len(alone))]
    assert [cache is not None for cache in caches] == [shares]
    if shares:
        assert caches[0].get_seq_length() >= 20


@pytest.mark.parametrize("setting", [{"cache_implementation": "static"}, {"use_cache": False}])
def test_a_model_with_another_cache_computes_each_text(setting: dict[str, Any]) -> None:
    model = llama().eval()
    for name, value in setting.items():
        setattr(model.generation_config, name, value)
    ids = torch.tensor([[2, *[5] * 20, 7], [2, *[5] * 20, 9]])
    with torch.no_grad():
        assert heads.shared_prefix(model, ids, torch.ones_like(ids)) is None
        found = Generator(model, max_new_tokens=4)(ids)
        expected = Generator(llama().eval(), max_new_tokens=4)(ids)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "texts",
    [
        [[5] * 30],  # one alone
        [[5] * 15, [5] * 30],  # too few
        [[5] * 16, [5] * 30],  # the last one of a text is computed in any case
        [[4, *[5] * 20], [5] * 21],
    ],
)
def test_short_beginnings_are_not_shared(texts: list[list[int]]) -> None:
    ids = torch.tensor([[0] * (30 - len(text)) + text for text in texts])
    assert heads.shared_prefix(None, ids, (ids != 0).long()) is None


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Embedder(nn.Linear(1, 1)), "expected a model of transformers"),
        (lambda: Embedder(bert(), "max"), "pooling='max'"),  # type: ignore[arg-type]
        (lambda: Embedder(prompted(llama())), "PeftModelForCausalLM has a prompt or prefix"),
        (lambda: Generator(bert()), "BertForSequenceClassification cannot generate"),
        (lambda: Generator(llama(), 0), "max_new_tokens=0"),
        (lambda: Generator(llama(), 2, {"custom_generate": "a/b"}), "'custom_generate' is not among"),
        (lambda: Generator(llama(), 2, {"trust_remote_code": True}), "'trust_remote_code' is not among"),
    ],
)
def test_what_cannot_work(make: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        make()
