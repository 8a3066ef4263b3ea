"""Modules around a model of Hugging Face whose outputs become columns: embeddings, and generated tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, is_integer
from sparkdl.hf.outputs import as_configured, is_adapted, is_model, takes_by_name, without_adapter
from sparkdl.hf.padding import by_length, check_repeats, reads_before, reads_behind
from sparkdl.hf.sampling import sampled, seeds_of

_POOLINGS = ("mean", "cls", "last")
_OPTIONS = frozenset(
    (
        *("num_beams", "do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p"),
        *("repetition_penalty", "no_repeat_ngram_size", "length_penalty", "early_stopping"),
        *("min_new_tokens", "eos_token_id", "bos_token_id", "pad_token_id"),
    )
)
"""Options of generation that are plain numbers; others name files, code or functions."""

_OF_ALL_TOKENS = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
}
"""Options that look at all tokens of a row, also those that only fill it up; and what changes nothing."""

# kinds whose state lies in the module: beams mix it up, and a text of one token goes on from the one before
_WITHOUT_CACHE = ("recurrent_gemma",)
_SHORTEST = 16  # copying keys and values of fewer tokens of a prefix gains nothing


class Embedder(nn.Module):
    """Turns the tokens of a text into one vector: the last hidden states of a model, pooled.

    Args:
        model: a model of ``transformers`` or ``peft``; a head that it has is not run.
        pooling: ``"mean"`` over the text's tokens, ``"cls"`` for the first one, ``"last"`` for the last one.
        normalize: whether vectors have length 1.

    Raises:
        ConfigError: if something else is given.
    """

    def __init__(
        self, model: nn.Module, pooling: Literal["mean", "cls", "last"] = "mean", normalize: bool = False
    ) -> None:
        super().__init__()
        _check(model)
        if pooling not in _POOLINGS:
            raise ConfigError(f"pooling={pooling!r}: expected one of {', '.join(_POOLINGS)}")
        adapters: Any = getattr(model, "peft_config", {}) if is_adapted(model) else {}
        if any(own.is_prompt_learning for own in adapters.values()):
            raise ConfigError(
                f"model: {type(model).__name__} has a prompt or prefix that was learned, and the hidden "
                "states of its base alone would be pooled; take adapters in its layers, such as LoRA"
            )
        check_repeats(model)
        self.model = model
        self.pooling = pooling
        self.normalize = normalize

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return vectors, shape (rows, hidden)."""
        model = without_adapter(self.model)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        given = {"input_ids": input_ids, "attention_mask": mask}
        if token_type_ids is not None:
            given["token_type_ids"] = token_type_ids
        columns = _from_the_left(mask)
        given = {name: values.gather(1, columns) for name, values in given.items()}
        if reads_behind(model):
            vectors = self._by_length(model, given)
        else:
            vectors = self._pooled(model.base_model(**given).last_hidden_state, given["attention_mask"])
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors

    def _by_length(self, model: Any, given: Mapping[str, Tensor]) -> Tensor:
        """Return the vectors of texts of which those of one length share a pass."""
        parts, places = [], []
        for length, some in by_length(given["attention_mask"]):
            as_configured(model)
            part = {name: values[some, :length] for name, values in given.items()}
            parts.append(self._pooled(model.base_model(**part).last_hidden_state, part["attention_mask"]))
            places.append(some)
        return torch.cat(parts)[torch.cat(places).argsort()]

    def _pooled(self, hidden: Tensor, mask: Tensor) -> Tensor:
        if self.pooling == "cls":
            return hidden[:, 0]
        if self.pooling == "last":
            places = torch.arange(mask.shape[1], device=mask.device)
            last = (places * (mask != 0)).argmax(dim=1)
            return hidden[torch.arange(len(hidden), device=hidden.device), last]
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)


class Generator(nn.Module):
    """Continues each text: the tokens that a model generates, filled up to one length.

    Args:
        model: a model of ``transformers`` or ``peft`` that generates.
        max_new_tokens: tokens of each output row.
        options: of ``generate``, such as ``{"num_beams": 4}``; by default the likeliest token is taken.
            With ``{"do_sample": True}`` draws follow from seed, text and number of a row: they are the same
            in another batch, and when a task runs again.
        seed: for other draws.

    Raises:
        ConfigError: if the model cannot generate, or an option is none that is a plain value.
    """

    def __init__(
        self,
        model: nn.Module,
        max_new_tokens: int = 32,
        options: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        _check(model)
        if not hasattr(model, "generate"):
            raise ConfigError(
                f"model: {type(model).__name__} cannot generate; take one with a head for it, such as "
                "AutoModelForCausalLM"
            )
        if not is_integer(max_new_tokens, 1):
            raise ConfigError(f"max_new_tokens={max_new_tokens!r}: expected a positive number of tokens")
        unknown = sorted(set(options or {}) - _OPTIONS)
        if unknown:
            raise ConfigError(f"options: {unknown[0]!r} is not among {', '.join(sorted(_OPTIONS))}")
        check_repeats(model)
        self.model = model
        self.max_new_tokens = max_new_tokens
        self.options = dict(options or {})
        self.seed = seed

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the numbers of new tokens, shape (rows, max_new_tokens)."""
        model: Any = self.model
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        options = {"do_sample": False, "pad_token_id": self._padding(), **self.options}
        if model.config.model_type in _WITHOUT_CACHE:
            options["use_cache"] = False
        if model.config.is_encoder_decoder:
            columns = _from_the_left(mask)
            input_ids, mask = input_ids.gather(1, columns), mask.gather(1, columns)
        else:
            input_ids, mask = _to_the_right(input_ids, mask, options["pad_token_id"])
        seeds = seeds_of(input_ids, mask, self.seed) if options["do_sample"] else None
        of_all = any(self._setting(name, nothing) != nothing for name, nothing in _OF_ALL_TOKENS.items())
        reads = reads_behind if model.config.is_encoder_decoder else reads_before
        if not of_all and not reads(model):
            return self._continued(input_ids, mask, options, seeds)
        input_ids, mask = _to_the_right(input_ids, mask, options["pad_token_id"])
        rows = input_ids.new_empty(len(input_ids), self.max_new_tokens)
        for length, some in by_length(mask):  # padding would count as tokens of the text
            own = None if seeds is None else [seeds[n] for n in some.tolist()]
            rows[some] = self._continued(input_ids[some, -length:], mask[some, -length:], options, own)
        return rows

    def _continued(
        self, input_ids: Tensor, mask: Tensor, options: Mapping[str, Any], seeds: Sequence[int] | None
    ) -> Tensor:
        """Return the new tokens of some texts, filled up."""
        model, beams, options = self.model, self._setting("num_beams", 1), dict(options)
        shares = beams == 1 and options.get("use_cache", True)
        if shares and not model.config.is_encoder_decoder:  # type: ignore[union-attr]
            options["past_key_values"] = shared_prefix(model, input_ids, mask)
        if seeds is None:
            return self._filled(self._generated(input_ids, mask, **options), options["pad_token_id"])
        if beams == 1:
            found = self._generated(input_ids, mask, **sampled(model, options, seeds, self.max_new_tokens))
            return self._filled(found, options["pad_token_id"])
        rows = []
        for n, seed in enumerate(seeds):  # beams draw from the generator that all rows share
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                found = self._generated(input_ids[n : n + 1], mask[n : n + 1], **options)
            rows.append(self._filled(found, options["pad_token_id"]))
        return torch.cat(rows)

    def _setting(self, name: str, nothing: Any) -> Any:
        """Return an option of generation, which may be the model's own; ``nothing`` if it is not set."""
        own = getattr(getattr(self.model, "generation_config", None), name, None)
        found = self.options.get(name, own)
        return nothing if found is None else found

    def _generated(self, input_ids: Tensor, mask: Tensor, **options: Any) -> Tensor:
        """Return the new tokens."""
        model: Any = self.model
        as_configured(model)
        options |= {"num_return_sequences": 1, "return_dict_in_generate": False}
        found: Tensor = model.generate(
            input_ids=input_ids, attention_mask=mask, max_new_tokens=self.max_new_tokens, **options
        )
        return found[:, 1:] if model.config.is_encoder_decoder else found[:, input_ids.shape[1] :]

    def _filled(self, found: Tensor, padding: int) -> Tensor:
        ends = torch.as_tensor(self._setting("eos_token_id", []), device=found.device)
        ended = torch.isin(found, ends).int()  # beams fill rows of a batch up with the token that ends them
        found = found.masked_fill(ended.cumsum(dim=1) > ended, padding)
        return nn.functional.pad(found, (0, self.max_new_tokens - found.shape[1]), value=padding)

    def _padding(self) -> int:
        """Return the number of the token that fills rows up."""
        model: Any = self.model
        for of in (getattr(model, "generation_config", None), model.config):
            for name in ("pad_token_id", "eos_token_id"):
                found = getattr(of, name, None)
                found = found[0] if isinstance(found, list) and found else found
                if isinstance(found, int):
                    return found
        return 0


def _from_the_left(mask: Tensor) -> Tensor:
    """Return the columns by which texts begin their rows: models may count positions from there."""
    length = mask.shape[1]
    first = (mask != 0).int().argmax(dim=1)
    return (torch.arange(length, device=mask.device) + first[:, None]) % length


def _to_the_right(ids: Tensor, mask: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """Move texts to the end of their rows, where the next token is to follow."""
    order = torch.argsort(mask != 0, dim=1, stable=True)
    mask = mask.gather(1, order)
    return ids.gather(1, order).masked_fill(mask == 0, padding), mask


def _check(model: Any) -> None:
    if not is_model(model):
        raise ConfigError(
            f"model={model!r:.100}: expected a model of transformers or peft, such as "
            "AutoModel.from_pretrained(folder)"
        )


def shared_prefix(model: Any, ids: Tensor, mask: Tensor) -> Any:
    """Run a model on the tokens with which all texts of a batch begin, such as an instruction.

    ``ids`` have shape (rows, length), each text at the end of its row, and ``mask`` is 0 before it. Returned
    is the cache with which ``generate`` goes on: keys and values of the columns in which the longest text has
    its prefix. A shorter one has a part of it behind them, which is computed anew. ``None`` if there is too
    little to share, the model generates with another cache or none, or its cache holds anything but keys and
    values of all tokens, as that of a sliding window or a state does.
    """
    settings = getattr(model, "generation_config", None)
    if getattr(settings, "cache_implementation", None) or getattr(settings, "use_cache", None) is False:
        return None
    rows, length = ids.shape
    before = length - mask.sum(dim=1)  # of each row: columns without text
    count = _common(ids, before)
    if rows == 1 or count < _SHORTEST:
        return None
    longest = int(before.argmin())
    first = ids[longest, int(before[longest]) :][None, :count]
    given = {"input_ids": first, "attention_mask": torch.ones_like(first)}
    if takes_by_name(model, ("position_ids",)):  # RoBERTa counts from another number without them
        given["position_ids"] = torch.arange(count, device=ids.device)[None]
    output = model(**given, use_cache=True)
    cache: Any = getattr(output, "past_key_values", None)
    layers = getattr(cache, "layers", ())
    if type(cache).__name__ != "DynamicCache" or any(type(one).__name__ != "DynamicLayer" for one in layers):
        return None
    # Column j of a row is token j - before: keys know their position in the text, and not their column. What
    # stands where there is no text is masked.
    columns = torch.arange(int(before.min()) + count, device=ids.device)
    token = (columns - before[:, None]).clamp(min=0)
    shared = type(cache)()
    for number, layer in enumerate(layers):
        if layer.keys is None or layer.keys.ndim != 4 or layer.keys.shape[2] != count:
            return None
        keys, values = (part[0][:, token].transpose(0, 1) for part in (layer.keys, layer.values))
        shared.update(keys.contiguous(), values.contiguous(), number)
    return shared


def _common(ids: Tensor, before: Tensor) -> int:
    """Return how many tokens all texts begin with; each has at least one more."""
    length = ids.shape[1]
    count = int(length - before.max()) - 1
    if count < _SHORTEST:
        return 0
    columns = before[:, None] + torch.arange(count, device=ids.device)
    begins = ids.gather(1, columns)
    same = (begins == begins[:1]).all(dim=0)
    return count if bool(same.all()) else int(same.int().argmin())
