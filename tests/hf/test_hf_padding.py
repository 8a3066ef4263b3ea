"""Texts of several lengths in one batch, against each alone, for models that read padding beside a text."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from support.hf import bert, llama
from support.ways import Shipped
from torch import Tensor, nn

from sparkdl import Dataset, Trainer
from sparkdl.data import Pad
from sparkdl.distill import KD, Distiller
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.hf import Embedder, Generator
from sparkdl.hf.padding import reads_before, reads_behind
from sparkdl.ml import TorchModel
from sparkdl.ml.stages.inference import inference_of
from sparkdl.ml.stages.sql import free_inputs, scorer_of
from sparkdl.nn.batch import call
from sparkdl.serve import Predictor
from sparkdl.serve.served import ServedModel

PADDING, NEW = 2, 5
HEADS = {"num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32}
SIDE = {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 32, "d_model": 16}
FSIDE = {**SIDE, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
FAST = {"block_size": 2, "num_random_blocks": 1, "attention_type": "block_sparse"}
XLM = {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "pad_index": PADDING, "mask_token_id": 5}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2}
ROBERTA = {**HEADS, "is_decoder": True}
DECODERS = {
    "BartForCausalLM": ("Bart", {**SIDE, "forced_eos_token_id": None}),
    "TrOCRForCausalLM": ("TrOCR", SIDE),
    "RoFormerForCausalLM": ("RoFormer", ROBERTA),
    "RobertaForCausalLM": ("Roberta", ROBERTA),
    "XLMWithLMHeadModel": ("XLM", XLM),
}
ENCODERS = {
    "ConvBert": HEADS,
    "FNet": HEADS,
    "MobileBert": {**HEADS, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    "Nystromformer": HEADS,
    "CpmAnt": {**HEADS, "dim_head": 8, "dim_ff": 32},
    "BigBird": {**HEADS, **FAST},
}


def made(cls: str, kind: str, **options: Any) -> Any:
    """Return a model whose weights are so large that each token counts, that of the padding as well."""
    import transformers

    torch.manual_seed(0)
    common = {"vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": PADDING, "bos_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(**common, eos_token_id=3, **options)
    model = getattr(transformers, cls)(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=1.5 / weight.shape[-1] ** 0.5)
    return model


def prompted(model: Any, task: str) -> Any:
    """Return a model with vectors in front of each text that count."""
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name of yesterday
        tuned = peft.get_peft_model(model, peft.PromptTuningConfig(task_type=task, num_virtual_tokens=3))
    with torch.no_grad():
        for name, weight in tuned.named_parameters():
            if "prompt" in name:
                weight.normal_(std=2.0)
    return tuned.eval()


def texts(*lengths: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(3)
    return [torch.randint(7, 60, (n,), generator=draw) for n in lengths]


def batch(rows: list[Tensor], side: str = "right") -> tuple[Tensor, Tensor]:
    """Return tokens and mask of texts, filled up."""
    ids = nn.utils.rnn.pad_sequence(rows, True, PADDING, padding_side=side)
    return ids, nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], True, padding_side=side)


def continued(model: Any, text: Tensor) -> Tensor:
    """Return what transformers makes of a text by itself."""
    mask = torch.ones_like(text)[None]
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": PADDING, "eos_token_id": -1}
    found: Tensor = model.generate(input_ids=text[None], attention_mask=mask, **options)[0]
    return found[-NEW:] if model.config.is_encoder_decoder else found[len(text) :]


def check_continued(model: Any, begin: Tensor, *short: Tensor) -> None:
    """Check that texts, with and without a beginning that they share, go on as each does alone."""
    for rows in ([*short], [torch.cat([begin, text]) for text in short]):
        with torch.no_grad():
            expected = torch.stack([continued(model, row) for row in rows])
            found = Generator(model, NEW, {"eos_token_id": -1, "pad_token_id": PADDING})(*batch(rows))
        assert len({tuple(row) for row in expected.tolist()}) > 1
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_that_count_columns_continue_each_text_as_it_is_alone(name: str) -> None:
    """``generate`` gives them no positions by the mask; a beginning that texts share is computed likewise."""
    kind, options = DECODERS[name]
    model = made(name, kind, **options)
    check_continued(model, *texts(20, 6, 9, 2))


@pytest.mark.filterwarnings("ignore:Position ids are not supported")
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_a_learned_prompt_is_as_far_from_each_text_as_when_it_is_alone(name: str) -> None:
    kind, options = ("Llama", {**HEADS, "num_key_value_heads": 2}) if "Llama" in name else ("GPT2", GPT2)
    model = prompted(made(name, kind, **options), "CAUSAL_LM")
    check_continued(model, *texts(20, 6, 9, 2, 9))


def test_which_models_count_columns() -> None:
    """A family that nobody has listed counts positions by the mask only if it says that it takes them."""

    class Unknown(type(llama())):  # type: ignore[misc]
        def forward(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Any:
            return super().forward(input_ids, attention_mask, **options)

    assert reads_before(Unknown(llama().config))
    assert not reads_before(llama())
    assert reads_before(prompted(llama(), "CAUSAL_LM"))
    assert not reads_behind(prompted(bert(), "SEQ_CLS"))
    assert not reads_behind(bert())
    assert not reads_behind(nn.Linear(1, 1))


@pytest.mark.parametrize("kind", ENCODERS)
def test_vectors_of_models_that_read_padding_are_those_of_each_text(kind: str) -> None:
    rows = texts(30, 20, 30, 6, 2)  # the long ones first: BigBird turns to full attention for a short one
    model = made(f"{kind}Model", kind, **ENCODERS[kind])
    with torch.no_grad():
        alone = [
            model(input_ids=r[None], attention_mask=torch.ones_like(r)[None])[0][0].mean(0) for r in rows
        ]
        for side in ("left", "right"):
            found = Embedder(model)(*batch(rows, side))
            torch.testing.assert_close(found, torch.stack(alone), rtol=1e-4, atol=1e-4)


def test_an_encoder_that_turns_to_full_attention_turns_back() -> None:
    rows = texts(30, 6, 20)
    options = {**FSIDE, **FAST, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    model = made("BigBirdPegasusForConditionalGeneration", "BigBirdPegasus", **options)
    with torch.no_grad():
        expected = [continued(model, row) for row in (rows[0], rows[2], rows[1])]
        found = Generator(model, NEW, {"eos_token_id": -1, "pad_token_id": PADDING})(*batch(rows))
        assert torch.equal(found[[0, 2, 1]], torch.stack(expected))
        classifier = made("BigBirdForSequenceClassification", "BigBird", **HEADS, **FAST)
        first = classifier(input_ids=rows[0][None]).logits
        call(classifier, {"input_ids": rows[1][None]})
        torch.testing.assert_close(call(classifier, rows[0][None]), first)


@pytest.mark.parametrize(
    "module",
    [
        lambda: made("ConvBertForSequenceClassification", "ConvBert", **HEADS),
        lambda: prompted(made("GPT2ForSequenceClassification", "GPT2", **GPT2), "SEQ_CLS"),
    ],
    ids=["ConvBert", "GPT2 with a prompt"],
)
def test_scores_of_models_that_read_padding_are_those_of_each_text(module: Any) -> None:
    module = module()
    rows = texts(6, 9, 2, 9, 30, 6)
    masks = [torch.ones_like(row) for row in rows]
    with torch.no_grad():
        expected = torch.cat(
            [
                module(input_ids=r[None], attention_mask=m[None]).logits
                for r, m in zip(rows, masks, strict=True)
            ]
        ).numpy()
    names = ["input_ids", "attention_mask"]
    model = TorchModel.from_module(
        module,
        example={name: np.ones((2, 3), np.int64) for name in names},
        featuresCols=names,
        inputNames=names,
    )
    model.signature = model.signature.of_any_length([True, True])
    columns = tuple(pa.array([t.tolist() for t in some]) for some in (rows, masks))
    shipped: Any = Shipped(model.module)
    made_scorer = scorer_of(inference_of(model), shipped, free_inputs(model))
    (found,) = made_scorer(iter([columns]))
    np.testing.assert_allclose(found.to_pylist(), expected, rtol=1e-4, atol=1e-5)
    served = ServedModel(model)
    (answer,) = served.run([served.prepare(pa.table(dict(zip(names, columns, strict=True))))])
    np.testing.assert_allclose(answer.column("prediction").to_pylist(), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(DataError, match=f"{type(module).__name__} reads what fills them up"):
        Predictor(module)(
            input_ids=[row.tolist() for row in rows], attention_mask=[m.tolist() for m in masks]
        )


def test_a_trainer_gives_models_that_read_padding_texts_of_one_length(spark: Any) -> None:
    module = made("ConvBertForSequenceClassification", "ConvBert", **HEADS)
    rows = texts(6, 9, 2, 9, 30, 6)
    labels = torch.tensor([0, 1, 1, 0, 1, 0])
    table = pd.DataFrame(
        {
            "input_ids": [row.tolist() for row in rows],
            "attention_mask": [[1] * len(row) for row in rows],
            "label": labels,
        }
    )
    trainer = Trainer(
        module, loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.0), progress=False
    )
    with torch.no_grad():
        expected = torch.cat(
            [module(input_ids=r[None], attention_mask=torch.ones_like(r)[None]).logits for r in rows]
        )
    names = {name: name for name in ("input_ids", "attention_mask")}
    result = trainer.fit(
        table, features=names, label="label", collate=Pad(lengths=False), validation=table
    )  # of nothing, for the rate is 0
    found, score = trainer.predict(table), trainer.evaluate(table)["loss"]
    assert result.scores["val/loss"] == pytest.approx(score, abs=1e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert score == pytest.approx(nn.functional.cross_entropy(expected, labels).item(), abs=1e-5)


def test_soft_labels_of_a_teacher_that_reads_padding_are_those_of_each_text(spark: Any) -> None:
    teacher = made("ConvBertForSequenceClassification", "ConvBert", **HEADS)
    student, rows = bert(), texts(6, 9, 2, 9, 30, 6)
    features = [
        ({"input_ids": row.numpy(), "attention_mask": np.ones(len(row), np.int64)}, number % 2)
        for number, row in enumerate(rows)
    ]
    with Dataset.from_torch(features, spark=spark, collate=Pad(lengths=False)) as data:
        found = Distiller(
            student,
            teacher,
            loss=KD(alpha=1.0, temperature=1.0),
            optimizer=partial(torch.optim.SGD, lr=0.1),
            batch_size=6,
            progress=False,
        ).fit(data)
    with torch.no_grad():
        soft, own = (
            torch.cat([m(input_ids=r[None], attention_mask=torch.ones_like(r)[None]).logits for r in rows])
            for m in (teacher, student)
        )
    expected = nn.functional.kl_div(own.log_softmax(1), soft.softmax(1), reduction="batchmean")
    assert found.history[0]["loss"] == pytest.approx(expected.item(), rel=0.02)  # two bytes a logit


@pytest.mark.parametrize("name", ["hash_seed", "num_buckets"])
def test_hashes_that_differ_from_call_to_call_are_refused(name: str) -> None:
    options: dict[str, Any] = {"hash_seed": 0, "num_buckets": 2, name: None, "attn_layers": ["local", "lsh"]}
    model = made("ReformerModel", "Reformer", axial_pos_embds=False, hidden_size=16, **options)
    with pytest.raises(ConfigError, match=f"ReformerModel has config.{name}=None"):
        Embedder(model)
