"""The content of a saved model or estimator, apart from where its bytes lie.

::

    path/metadata/   one line of JSON: Spark's (class, uid, Params) with an entry "sparkdl", see describe
         weights/    parquet: pieces of a safetensors file (offset, data); only with a built module
         code/       parquet: pieces of a pickle; only where saving was told to write one

Nothing is unpickled unless the caller says so, and nothing imported but what is listed or the caller trusts.
The metadata has the checksums of all, its own included, and all that is read is compared with them. Format 1
had none.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import torch
from torch import nn

from sparkdl._version import __version__
from sparkdl.exceptions import ConfigError, ModelError, SerializationError, SparkdlError
from sparkdl.nn.signature import Signature
from sparkdl.saved import identity, integrity, weights
from sparkdl.saved import source as sources
from sparkdl.saved.metadata import CODE, FORMAT, FORMAT_WITHOUT_TABLE, SHA256, WEIGHTS
from sparkdl.saved.moved import current
from sparkdl.saved.source import ModuleSource
from sparkdl.saved.trust import LISTED_ONLY, Trust

_SAVE_PICKLED = (
    "Or save it with code in a pickle: write().option('pickle', 'true').save(path), inside of a pipeline "
    "with sparkdl.ml.allow_pickle(): ...; loading then needs the same"
)


@dataclass(frozen=True)
class Content:
    """A built module and other values, to be written or as read."""

    # with its weights; ``None`` if there is none but, say, a factory among the attributes
    module: nn.Module | None = None
    source: ModuleSource | None = None  # where the module's code comes from
    signature: Signature | None = None  # what goes into the module and comes out
    attributes: Mapping[str, Any] = field(default_factory=dict)  # other values by name
    # what a model of a table knows of its columns and labels, as JSON has it
    table: Mapping[str, Any] | None = None


def describe(content: Content, allow_pickle: bool) -> tuple[dict[str, Any], bytes | None]:
    """Describe a content as JSON, apart from its weights; pickle what JSON cannot hold if that is allowed.

    The entry of the metadata is::

        {"format": 3, "version": "0.1.0",
         "module": {"source": {"path": ..., "arguments": ...}, "frozen": [...], "signature": ...},
         "attributes": {"loss": ...},
         "pickled": ["optimizer"],
         "identity": {"run": ..., ...},                    only with a module
         "table": {"encoding": ..., "labels": [...]}}      only of a model of a table, or of text labels

    To these Spark's side adds "hyper", the names of Params that stand for a factory's arguments, and
    :func:`sparkdl.saved.metadata.seal` the checksums. ConfigError names the value that cannot be written,
    SerializationError one that cannot be pickled either.
    """
    pickled: dict[str, Any] = {}
    described: dict[str, Any] | None = None
    module = content.module
    if module is not None:
        described = {
            "source": None,
            "frozen": [name for name, p in module.named_parameters() if not p.requires_grad],
            "signature": None if content.signature is None else content.signature.to_json(),
        }
        try:
            source = ModuleSource.infer(module) if content.source is None else content.source
            source.check(module)
            described["source"] = source.to_json()
        except ConfigError as error:
            _need_pickle("module", module, error, allow_pickle)
            pickled["module"] = module
    attributes = {}
    for name, value in content.attributes.items():
        try:
            attributes[name] = sources.encode(value, name)
        except ConfigError as error:
            _need_pickle(name, value, error, allow_pickle)
            pickled[name] = value
    info: dict[str, Any] = {
        # What has no table can be read by versions that know no tables.
        "format": FORMAT if content.table else FORMAT_WITHOUT_TABLE,
        "version": __version__,
        "module": described,
        "attributes": attributes,
        "pickled": list(pickled),
    }
    if module is not None:
        info[identity.KEY] = identity.marked(module).to_json()
    if content.table:
        info["table"] = dict(content.table)
    return info, _dumps(pickled, module) if pickled else None


def check_pickle(info: Mapping[str, Any], path: str, allow_pickle: bool, remedy: str) -> None:
    """Check that what is pickled may be read."""
    if info["pickled"] and not allow_pickle:
        names = ", ".join(map(str, info["pickled"]))
        raise ConfigError(
            f"path={path!r} holds a pickle ({names:.200}), and reading one can run any code. "
            f"If you trust who wrote it: {remedy}",
            code="config-saved",
        )


def build(
    info: Mapping[str, Any],
    path: str,
    pieces: Iterable[integrity.Chunk],
    code: Iterable[integrity.Chunk] = (),
    trust: Trust = LISTED_ONLY,
) -> Content:
    """Make a module from its description; the reverse of :func:`describe`.

    ``pieces`` are of the weights, the header first; they and ``code``, pieces of the pickle, are not asked
    for where there is no module, or pickle. Raises ConfigError if the description or weights cannot be read,
    are not what was written, or it names what may not be named; ModelError if the module cannot be built, or
    weights do not fit.
    """
    digests = info.get(SHA256)
    try:
        pickled = {}
        if info["pickled"]:
            pickled = _loads(integrity.joined(code, digests and digests[CODE]))
        attributes = {name: sources.decode(value, trust) for name, value in info["attributes"].items()}
        attributes |= {name: value for name, value in pickled.items() if name != "module"}
        described = info["module"]
        if described is None:
            return Content(attributes=attributes)
        source = described["source"] and ModuleSource.from_json(described["source"], trust)
        signature = described["signature"] and Signature.from_json(described["signature"])
        frozen = frozenset(described["frozen"])
        reader = _read(iter(pieces), digests and digests[WEIGHTS])
        if source is None:
            module: nn.Module = pickled["module"]
        else:
            _check_sizes(source, reader)
            with torch.random.fork_rng(devices=[]):
                module = source.build()
        weights.restore(module, reader.tensors, reader.aliases)
        for name, parameter in module.named_parameters():
            if name in frozen:
                parameter.requires_grad_(False)
        identity.mark(module, identity.Identity.parse(info.get(identity.KEY)))
    except SparkdlError as error:
        raise type(error)(f"path={path!r}: {error}", code=error.code) from error
    except Exception as error:  # whatever else stumbles over a description that is none
        raise ConfigError(
            f"path={path!r} cannot be read, its description is not complete: {error!r:.300}",
            code="config-saved",
        ) from error
    return Content(module, source, signature, attributes, info.get("table"))


def _check_sizes(source: ModuleSource, reader: weights.StreamReader) -> None:
    """Build the module without memory for its values first: a description may ask for terabytes."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            twin = source.build()
    except ModelError:  # some constructors look at values; what is wrong otherwise, building it will tell
        return
    weights.check_fit(twin, reader.tensors, reader.aliases)


def _read(pieces: Iterator[integrity.Chunk], sha256: str | None) -> weights.StreamReader:
    header = next(pieces, None)
    if header is None:
        raise ConfigError("weights are not complete: there are none", code="config-saved")
    reader = weights.StreamReader(header.data)
    for piece in pieces:
        reader.add(piece)
    reader.finish(sha256)
    return reader


def _need_pickle(name: str, value: Any, error: ConfigError, allow_pickle: bool) -> None:
    if not allow_pickle:
        raise ConfigError(
            f"{name} ({type(value).__name__}) cannot be saved by import path and arguments: {error}. "
            f"{_SAVE_PICKLED}",
            code="config-source",
        ) from error


def _dumps(values: dict[str, Any], module: nn.Module | None) -> bytes:
    """Pickle values; of the module's tensors, which are saved apart, only the names."""
    names: dict[int, str] = {}
    for name, tensor in weights.all_tensors(module) if module is not None else ():
        names.setdefault(id(tensor), name)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        def persistent_id(self, obj: Any) -> Any:
            if isinstance(obj, torch.Tensor) and id(obj) in names:
                trained = obj.requires_grad if isinstance(obj, nn.Parameter) else None
                return names[id(obj)], tuple(obj.shape), obj.dtype, trained
            return None

    file = io.BytesIO()
    try:
        Pickler(file).dump(values)
    except Exception as error:
        raise SerializationError(f"{', '.join(values)} cannot be pickled: {error!r}") from error
    return file.getvalue()


class _Unpickler(pickle.Unpickler):
    """Reads what :func:`_dumps` wrote; the module's tensors are empty until they are restored."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._tensors: dict[str, torch.Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        module, _, name = current(f"{module}:{name}").partition(":")
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        name, shape, dtype, trained = pid
        if name not in self._tensors:
            tensor = torch.empty(shape, dtype=dtype)
            self._tensors[name] = tensor if trained is None else nn.Parameter(tensor, requires_grad=trained)
        return self._tensors[name]


def _loads(code: bytes) -> dict[str, Any]:
    try:
        values = _Unpickler(io.BytesIO(code)).load()
    except Exception as error:
        raise ConfigError(
            f"the pickle cannot be read: {error!r}. It needs the packages, and often the Python version, "
            "that it was written with",
            code="config-saved",
        ) from error
    if not isinstance(values, dict):
        raise ConfigError(f"the pickle holds a {type(values).__name__}, expected a dict", code="config-saved")
    return values
