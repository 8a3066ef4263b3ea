"""Models from their class and configuration, and what a file may not ask for."""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.hf import bert, llama, lora
from support.mutations import damaged_value
from torch import nn

from sparkdl.exceptions import ConfigError, SparkdlError
from sparkdl.hf.heads import Embedder, Generator
from sparkdl.hf.rebuilt import adapted, describe, pretrained
from sparkdl.saved import content
from sparkdl.saved.content import Content
from sparkdl.saved.source import ModuleSource
from sparkdl.saved.weights import write


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1)
    )


def t5() -> Any:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    )


def tuned(name: str, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return peft.get_peft_model(llama(), getattr(peft, name)(task_type="CAUSAL_LM", **options))


def through_a_file(module: Any) -> Any:
    """Save and load as stages do, without Spark."""
    info, code = content.describe(Content(module), allow_pickle=False)
    assert code is None
    info = json.loads(json.dumps(info))
    return content.build(info, "test", write(module, 1 << 20)).module


def scaled(model: Any) -> None:
    for layer in model.modules():
        if hasattr(layer, "set_scale"):
            layer.set_scale("default", 3.0)


@pytest.mark.parametrize(
    ("change", "back", "expected"),
    [
        (lambda m: m.merge_adapter(), lambda m: m.unmerge_adapter(), "merged into the base"),
        (
            lambda m: m.base_model.disable_adapter_layers(),
            lambda m: m.base_model.enable_adapter_layers(),
            "disabled",
        ),
        (scaled, None, "scaled by another factor"),
    ],
)
def test_adapters_that_would_come_back_otherwise_are_refused(change: Any, back: Any, expected: str) -> None:
    """Built again they are beside their base, take part, and have the scale of their configuration."""
    module = lora(llama(), use_rslora=True, lora_alpha=5).eval()
    for name, parameter in module.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    through_a_file(module)
    change(module)
    with torch.no_grad():
        now = module(input_ids=ids).logits
    with pytest.raises(ConfigError, match=f"cannot be saved while its adapters are {expected}"):
        describe(module)
    assert ModuleSource.of_instance(module) is None
    if back is not None:
        back(module)
    else:  # another way to have what it gives now
        module = module.merge_and_unload()
    with torch.no_grad():
        found = through_a_file(module).eval()(input_ids=ids).logits
        torch.testing.assert_close(found, module(input_ids=ids).logits, rtol=1e-4, atol=1e-4)
    if expected != "disabled":
        torch.testing.assert_close(found, now, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        bert,
        partial(bert, "MaskedLM"),
        partial(bert, ""),
        partial(bert, num_labels=5),
        llama,
        gpt2,
        t5,
        partial(tuned, "IA3Config"),
        partial(tuned, "LoHaConfig", r=2, target_modules=["q_proj"]),
        partial(tuned, "LoKrConfig", r=2, target_modules=["q_proj"]),
        partial(tuned, "PromptTuningConfig", num_virtual_tokens=3),
        partial(tuned, "PrefixTuningConfig", num_virtual_tokens=3),
        lambda: lora(llama()),
        lambda: lora(bert(), task_type="SEQ_CLS", target_modules=["query"]),
        lambda: lora(llama(), use_dora=True, bias="all"),
        lambda: Embedder(bert(""), normalize=True),
        lambda: Generator(lora(llama()), 4, {"num_beams": 2}),
    ],
)
def test_a_model_comes_back_without_a_pickle(make: Any) -> None:
    module = make().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.01)
    back = through_a_file(module)
    assert type(back) is type(module)
    assert back.state_dict().keys() == module.state_dict().keys()
    for name, value in module.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name
    trained = [[n for n, p in m.named_parameters() if p.requires_grad] for m in (module, back)]
    assert trained[0] == trained[1]


def test_a_model_from_a_folder(tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path)
    module = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path, attn_implementation="eager"
    )
    back = through_a_file(module)
    assert back.config._attn_implementation == "eager"
    assert str(tmp_path) not in json.dumps(describe(module).arguments)  # type: ignore[union-attr]


def test_a_change_that_the_configuration_does_not_know_is_found() -> None:
    module = bert()
    module.dropout.p = 0.4
    with pytest.raises(ConfigError, match=r"dropout\.p is not what it is built with"):
        ModuleSource.infer(module)


class Own(transformers.BertForMaskedLM):
    pass


def test_a_class_of_ones_own_is_code_of_ones_own() -> None:
    with pytest.raises(ConfigError, match="Own is no class of transformers"):
        ModuleSource.infer(Own(bert().config))


@pytest.mark.parametrize(
    "change",
    [
        {"auto_map": {"AutoModel": "evil/repo--modeling.Net"}},
        {"attn_implementation": "evil/kernels"},
        {"_attn_implementation": "flash_attention_2"},
        {"text_config": {"auto_map": {"AutoModel": "x.Y"}}},
        {"sub_configs": [{"use_pretrained_backbone": True}]},
        {"trust_remote_code": True},
        {"quantization_config": {"quant_method": "custom"}},
        {"model_type": "timm_backbone"},
        {"model_type": "none_such"},
        {"model_type": None},
    ],
)
def test_what_a_configuration_may_not_ask_for(change: dict[str, Any]) -> None:
    arguments = describe(bert()).arguments  # type: ignore[union-attr]
    config = {**arguments["config"], **change}
    with pytest.raises(ConfigError, match="may not name them|no such model"):
        pretrained(arguments["architecture"], config)


@pytest.mark.parametrize(
    "name", ["AutoModel", "pipeline", "Trainer", "os", "a.b", "PreTrainedModel", "logging"]
)
def test_what_is_no_architecture(name: str) -> None:
    with pytest.raises(ConfigError, match="no such model"):
        pretrained(name, bert().config.to_dict())


def test_other_attention_or_generation_from_a_file() -> None:
    config = bert().config.to_dict()
    with pytest.raises(ConfigError, match="attention.attn_implementation"):
        pretrained("BertModel", config, attention="evil/kernels")
    with pytest.raises(ConfigError, match="custom_generate"):
        pretrained("BertModel", config, generation={"custom_generate": "evil/repo"})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"megatron_config": {}}, "megatron_config"),
        ({"megatron_core": "os"}, "megatron_core"),
        ({"tokenizer_name_or_path": "evil/repo"}, "tokenizer_name_or_path"),
        ({"peft_type": "XLORA"}, "peft_type='XLORA'"),
        ({"peft_type": None}, "peft_type=None"),
    ],
)
def test_what_an_adapter_may_not_ask_for(change: dict[str, Any], expected: str) -> None:
    adapter = describe(lora(llama())).arguments["adapter"]  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=expected):
        adapted(llama(), {**adapter, **change})


def test_several_adapters_cannot_be_saved() -> None:
    model = lora(llama())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ConfigError, match=r"\['default', 'second'\]"):
        describe(model)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparkdl.hf.extra import need

    with pytest.raises(ConfigError, match=r"pip install 'sparkdl\[transformers\]'"):
        need("no_such_package", "HFTokenizer")


ADAPTED = lora(llama())
DESCRIBED = json.dumps(content.describe(Content(ADAPTED), allow_pickle=False)[0])
WEIGHTS = list(write(ADAPTED, 1 << 20))


def check_made_up(change: Any) -> None:
    """Build a model with adapters from a description that somebody has changed."""
    before = set(sys.modules)
    info = json.loads(DESCRIBED)
    info["module"]["source"] = change(info["module"]["source"])
    with suppress(SparkdlError):
        content.build(info, "test", iter(WEIGHTS))
    new = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert new <= {"transformers", "peft", "torch"}


@settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_hostile_adapter_is_told_or_does_no_harm(data: st.DataObject) -> None:
    check_made_up(lambda source: data.draw(damaged_value(source)))


@pytest.mark.slow
@settings(max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_hostile_adapter_of_any_kind_is_told_or_does_no_harm(data: st.DataObject) -> None:
    check_made_up(lambda source: data.draw(damaged_value(data.draw(damaged_value(source)))))


@pytest.mark.parametrize(
    "pattern",
    [
        *("(.+)+!", "(a|aa)*!", r"((\w+)\.?){1,50}!", ".*.*.*.*!", "[)]*(.*){2}"),
        *(".?" * 30 + "!", "(.|.)" * 30 + "!", "(" + "|".join(".." * 30) + ")!"),
    ],
)
@pytest.mark.parametrize("place", ["target_modules", "exclude_modules", "layers_pattern", "rank_pattern"])
def test_a_pattern_that_takes_for_ever(place: str, pattern: str) -> None:
    info = json.loads(DESCRIBED)
    adapter = info["module"]["source"]["arguments"]["adapter"]
    adapter[place] = {pattern: 4} if place == "rank_pattern" else pattern
    with pytest.raises(SparkdlError, match=f"adapter option {place}.*could take for ever.*list the names"):
        content.build(info, "test", iter(WEIGHTS))


@pytest.mark.parametrize(
    "pattern",
    [
        r".*\.(q|v)_proj",
        r".*layers.*(self_attn|cross).*(q|v)_proj$",
        r"model\.layers\.[0-9]+\.self_attn\.q_proj",
    ],
)
def test_patterns_of_guides_are_kept(pattern: str) -> None:
    module = lora(llama(), target_modules=pattern)
    assert through_a_file(module).state_dict().keys() == module.state_dict().keys()
