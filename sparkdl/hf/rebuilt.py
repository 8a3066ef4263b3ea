"""Models of Hugging Face from descriptions: the name of their class, and their configuration.

Classes come from ``transformers`` and ``peft`` as they are installed. No remote code is run and nothing is
fetched; see :mod:`sparkdl.hf.checked`.
"""

from __future__ import annotations

import enum
import math
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.hf.checked import check_adapter, check_config
from sparkdl.hf.extra import need
from sparkdl.hf.outputs import is_adapted, is_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WHAT = "a saved model of Hugging Face"
_LEFT_OUT = ("transformers_version", "_name_or_path")
_ADAPTER = "default"


def pretrained(
    architecture: str,
    config: Mapping[str, Any],
    attention: str | None = None,
    generation: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Build a model of ``transformers`` with fresh weights; part of the format of saved models.

    ``config`` is as ``config.json`` has it, ``model_type`` included, ``generation`` as
    ``generation_config.json``. ``attention`` is ``"sdpa"`` or ``"eager"``; the model's default if ``None``.
    """
    transformers = need("transformers", _WHAT)
    values = {name: value for name, value in config.items() if name not in _LEFT_OUT}
    check_config(values)
    check_config({"attn_implementation": attention}, "attention")
    check_config(dict(generation or {}), "generation")
    kind = values.pop("model_type", None)
    mapping = transformers.CONFIG_MAPPING
    if not isinstance(kind, str) or kind not in mapping:
        raise ConfigError(f"config.model_type={kind!r:.100}: transformers has no such model")
    made = mapping[kind].from_dict(values)
    cls = _class_of(architecture)
    if attention is not None:
        made._attn_implementation = attention
    with _quiet():
        module: Any = cls(made)
    if generation is not None:
        module.generation_config = transformers.GenerationConfig.from_dict(_without(generation))
    return module.train(False)  # type: ignore[no-any-return]


def adapted(model: nn.Module, adapter: Mapping[str, Any]) -> nn.Module:
    """Put adapters of ``peft`` with fresh weights into a model; part of the format of saved models.

    Raises ConfigError if the kind of adapter, or an option, is none that can be saved.
    """
    peft = need("peft", "a saved model with adapters")
    check_adapter(adapter)
    values = dict(adapter)
    # Other ways to begin need data or files; the weights come from the file anyway.
    values |= {name: True for name in ("init_lora_weights",) if isinstance(values.get(name), str)}
    config = peft.PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType(values.pop("peft_type"))](**values)
    with _quiet():
        module: nn.Module = peft.get_peft_model(model, config)
    return module.train(False)


@dataclass(frozen=True, slots=True)
class Description:
    """A call that builds a model."""

    factory: Callable[..., nn.Module]  # a function of this Python module
    arguments: dict[str, Any]  # by name: JSON values, or the description of another model


def describe(module: nn.Module) -> Description | None:
    """Return the call that builds a model again; ``None`` if it is none of ``transformers`` or ``peft``.

    Raises ConfigError if it is one that cannot be described.
    """
    if not is_model(module):
        return None
    model: Any = module
    return _describe_adapted(model) if is_adapted(module) else _describe_model(model)


def _describe_model(module: Any) -> Description:
    name = type(module).__name__
    if _find(name) is not type(module):
        raise ConfigError(
            f"{name} is no class of transformers: save it as code of your own, with a factory "
            "(module=make_model) instead of an instance",
            code="config-source",
        )
    settings: Any = module.config
    config = _without(_json(settings.to_dict()))
    arguments: dict[str, Any] = {"architecture": name, "config": config}
    attention = getattr(settings, "_attn_implementation", None)
    check_config(config)
    check_config({"attn_implementation": attention}, "attention")
    if attention is not None:
        arguments["attention"] = attention
    generation: Any = getattr(module, "generation_config", None)
    if generation is not None:
        arguments["generation"] = _without(_json(generation.to_dict()))
        check_config(arguments["generation"], "generation")
    return Description(pretrained, arguments)


def _describe_adapted(module: Any) -> Description:
    if list(module.peft_config) != [_ADAPTER]:
        raise ConfigError(
            f"{type(module).__name__} has the adapters {list(module.peft_config)}; one called {_ADAPTER!r} "
            "can be saved: delete_adapter() or merge_and_unload() the others",
            code="config-source",
        )
    config = module.peft_config[_ADAPTER]
    _check_as_built(module, bool(getattr(config, "use_rslora", False)))
    defaults = type(config)().to_dict()
    values = {
        name: value
        for name, value in config.to_dict().items()
        if name in ("peft_type", "task_type") or value != defaults.get(name)
    }
    # Where the base came from, and by which peft, is not what it is.
    for name in ("base_model_name_or_path", "auto_mapping", "peft_version", "revision"):
        values.pop(name, None)
    if values.get("modules_to_save"):  # peft adds the head's names each time
        values["modules_to_save"] = sorted(set(values["modules_to_save"]))
    adapter = _json(values)
    check_adapter(adapter)
    return Description(adapted, {"model": _describe_model(module.get_base_model()), "adapter": adapter})


def _check_as_built(module: Any, rooted: bool) -> None:
    """Check that adapters are beside their base, take part, and have the scale of their configuration.

    A model that is built again has them so; ``rooted`` scales are divided by the root of the rank (rsLoRA).
    """
    found = ""
    for layer in module.modules():
        if getattr(layer, "merged", False) is True:
            found = "merged into the base: unmerge_adapter() first, or save what merge_and_unload() returns"
        elif getattr(layer, "disable_adapters", False) is True:
            found = "disabled: enable_adapter_layers() first, or save what unload() returns"
        elif _is_scaled(layer, rooted):
            found = (
                "scaled by another factor than their configuration says: save what merge_and_unload() returns"
            )
        if found:
            raise ConfigError(
                f"{type(module).__name__} cannot be saved while its adapters are {found}",
                code="config-source",
            )


def _is_scaled(layer: Any, rooted: bool) -> bool:
    scales, ranks = getattr(layer, "scaling", None), getattr(layer, "r", None)
    alphas = getattr(layer, "lora_alpha", getattr(layer, "alpha", None))
    if not all(isinstance(each, Mapping) and _ADAPTER in each for each in (scales, ranks, alphas)):
        return False
    rank = math.sqrt(ranks[_ADAPTER]) if rooted else ranks[_ADAPTER]  # type: ignore[index]
    return not math.isclose(scales[_ADAPTER], alphas[_ADAPTER] / rank, rel_tol=1e-6)  # type: ignore[index]


def _class_of(architecture: str) -> type[nn.Module]:
    found = _find(architecture)
    if found is None:
        raise ConfigError(f"architecture={architecture!r:.100}: transformers has no such model")
    return found


def _find(name: str) -> type[nn.Module] | None:
    """Return a class of models of ``transformers``; ``None`` if there is none of this name."""
    transformers = need("transformers", _WHAT)
    found: Any = getattr(transformers, name, None) if name.isidentifier() else None
    if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
        return None
    return found if found.__module__.startswith("transformers.models.") else None


def _without(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in _LEFT_OUT}


def _json(value: Any) -> Any:
    """Return a configuration's value as JSON has it."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(name) if not isinstance(name, int) else name: _json(item) for name, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    return value


@contextmanager
def _quiet() -> Iterator[None]:
    """Pass over the warnings of one of the two packages about the other's names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield
