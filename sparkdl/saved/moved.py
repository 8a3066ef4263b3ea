"""Old places of code: files and imports of earlier releases name it by them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

_PLACES = (  # package of earlier releases, package of today, modules (old>new where the name changed)
    (
        "sparkdl.nn",
        "sparkdl.nn.models",
        "anomaly arguments autoencoder convlstm deepfm dlrm gru4rec inception knrm lenet mlp nbeats neuralcf "
        "parts recurrent resnet seq2seq ssd tcn textcnn transformer vgg wide_and_deep",
    ),
    ("sparkdl.nn", "sparkdl.saved", "source"),
    ("sparkdl.nn", "sparkdl.serve", "sharing>served"),
    ("sparkdl.summary", "sparkdl.train.hooks", "timeline"),
    ("sparkdl.train", "sparkdl.train.hooks", "callbacks checkpointing>checkpoint progress"),
    ("sparkdl.allreduce", "sparkdl.wire", "codec"),
    ("sparkdl", "sparkdl.wire", "frame pieces codec layout held buffers private rows>touched_rows"),
    ("sparkdl", "sparkdl._spark", "logs"),
    ("sparkdl", "sparkdl.cli", "arguments checkpoints doctor"),
    (
        "sparkdl.commands",
        "sparkdl.cli",
        "board clusters document init notebook plan process profile properties rehearse schema "
        "serve templates",
    ),
    ("sparkdl.commands", "sparkdl.cli.submit", "submit>command job packing resources retries"),
    ("sparkdl.commands", "sparkdl.cli.runs", "runs>command found page"),
    ("sparkdl.doctor", "sparkdl.cli.doctor", "command driver probe report session"),
    ("sparkdl", "sparkdl.train.planning", "rehearsals>request"),
    ("sparkdl.train", "sparkdl.train.planning", "costs"),
    (
        "sparkdl.train",
        "sparkdl.train.options",
        "averaging config elastic local_steps schedule stragglers triggers",
    ),
    ("sparkdl", "sparkdl.serve", "server"),
    ("sparkdl.ml", "sparkdl.serve", "served passes served_columns>columns"),
    (
        "sparkdl.server",
        "sparkdl.serve.server",
        "app arrow_ipc batching bodies connections formats guard meters options run versions",
    ),
    ("sparkdl.nn", "sparkdl", "saved"),
    (
        "sparkdl.nn.saved",
        "sparkdl.saved",
        "allowlist changes compare content importing integrity metadata moved published reading "
        "rows>table_rows source trust values weights",
    ),
    ("sparkdl.keyed", "sparkdl.saved", "served>served_rows"),
    ("sparkdl.keyed", "sparkdl.wire", "arrays"),
    (
        "sparkdl.data",
        "sparkdl.data.store",
        "build>dataframe built>build manifest sources>dataframe",
    ),
    (
        "sparkdl.optim",
        "sparkdl.optim.shard",
        "shard_division>division shard_optimizer>optimizer shard_run>run shardable packed lazy_rows",
    ),
    ("sparkdl.tune", "sparkdl.tune.schedulers", "halving stopping pbt moves"),
    (
        "sparkdl.tune",
        "sparkdl.tune.running",
        "advance alone>runners distributed>runners journal runners rows>shared_rows retried>watch search "
        "watch",
    ),
    (
        "sparkdl.ml",
        "sparkdl.ml.params",
        "attributes converters entries hyper keywords training_params>training",
    ),
    (
        "sparkdl.ml",
        "sparkdl.ml.estimators",
        "base>fits_torch continued embedding estimator evaluation fitting model observers shown sparsity "
        "stage>fits_module summary tables",
    ),
    (
        "sparkdl.ml",
        "sparkdl.ml.stages",
        "text hf images rowwise tabular tabular_fit tabular_frame arrow_columns inference outputs "
        "scorer udf sql",
    ),
    ("sparkdl.ml", "sparkdl.ml.persistence", "loading local replacing stored trusting"),
    ("sparkdl.ml", "sparkdl.ml.series", "backtest series_forecast>forecast series_params>params"),
)

MOVED = {
    f"{before}.{names.partition('>')[0]}": f"{now}.{names.rpartition('>')[2]}"
    for before, now, modules in _PLACES
    for names in modules.split()
} | {"sparkdl.commands": "sparkdl.cli"}
"""Modules by the place that they had. A module whose old name is that of a package today is not here."""

RENAMED = {"sparkdl.train.drop:Drop": "sparkdl.train.options.stragglers:DropStragglers"}
"""Classes by the path that they had."""

_STAGES = {
    f"sparkdl.ml.series.{name}": f"sparkdl.ml.series.stage.{name}"
    for name in ("TimeSeriesEstimator", "TimeSeriesModel")
}
"""Stages whose module has become a package of the same name."""

OPTIONS = {"num_slices": "num_shards"}
"""Options of a Trainer by the name that they had."""


def current(path: str) -> str:
    """Return an import path such as ``package.module:Class`` with the place that its module has now.

    It is a matter of names alone: whether the path may be imported is judged afterwards.
    """
    path = RENAMED.get(path, path)
    module, colon, name = path.partition(":")
    return f"{MOVED.get(module, module)}{colon}{name}"


def current_class(path: str) -> str:
    """Return the dotted path of a class with the place that its module has now."""
    path = _STAGES.get(path, path)
    module, _, name = path.rpartition(".")
    return current(f"{module}:{name}").replace(":", ".")


class _OldImports(MetaPathFinder, Loader):
    """Imports a module by its old name as the module of today, so that there is one copy of each class."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(MOVED[spec.name])
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # the import system has just set that of the old name


def allow_old_imports() -> None:
    """Make modules importable by their old names: Spark ML imports those that saved pipelines name."""
    if not any(isinstance(finder, _OldImports) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OldImports())
