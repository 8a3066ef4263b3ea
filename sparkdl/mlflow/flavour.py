"""A fitted model as an MLflow model."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl._version import __version__
from sparkdl.exceptions import ConfigError
from sparkdl.ml.persistence.local import save_local
from sparkdl.mlflow.schema import example_of, signature_of
from sparkdl.saved.trust import Entry
from sparkdl.serve.served import MODELS, ServedModel, read_fitted

if TYPE_CHECKING:
    from mlflow.models.model import Model, ModelInfo
    from mlflow.models.signature import ModelSignature

NAME = "sparkdl"
"""Of the flavour in an MLmodel file."""

_LOADER = "sparkdl.mlflow.pyfunc"
_FOLDER = "model"
_DATA = f"data/{_FOLDER}"  # where MLflow puts it
_WITH = ("torch", "pyspark", "pyarrow", "pandas", "numpy")


def log_model(
    model: Any,
    name: str = "model",
    *,
    registered_model_name: str | None = None,
    input_example: Any = None,
    signature: ModelSignature | None = None,
    trust: Sequence[str] = (),
    code_paths: Sequence[str] | None = None,
    pip_requirements: Sequence[str] | None = None,
    metadata: dict[str, Any] | None = None,
    **options: Any,
) -> ModelInfo:
    """Log a fitted model to the active MLflow run, or to a new one.

    Args:
        model: what an estimator of sparkdl fitted, or ``from_module`` made.
        name: of the logged model.
        registered_model_name: under which a new version is registered.
        input_example: rows with the model's columns, as a DataFrame of Spark or pandas; by default a row
            that is made up.
        signature: columns in and out; by default as the model has them.
        trust: packages or modules that the model may name besides those of torch, torchmetrics and sparkdl.
            They are noted for :mod:`mlflow.pyfunc`, which imports what an MLmodel file names anyway.
        code_paths: files and folders with the code of such modules, which MLflow stores with the model.
        pip_requirements: what it takes to run it; by default sparkdl, and these versions of what it needs.
        metadata: of MLflow.
        **options: further ones of ``mlflow.models.Model.log``, such as ``run_id`` or ``tags``.

    Raises:
        ConfigError: if it is no fitted model, or needs a pickle.
        ImportError: if MLflow is missing.
    """
    _need_mlflow()
    from mlflow.models import Model

    info: ModelInfo = Model.log(
        artifact_path=None,
        name=name,
        flavor=sys.modules[__name__],
        registered_model_name=registered_model_name,
        metadata=metadata,
        **options,
        model=model,
        input_example=input_example,
        signature=signature,
        trust=trust,
        code_paths=code_paths,
        pip_requirements=pip_requirements,
    )
    return info


def save_model(
    model: Any,
    path: str | Path,
    *,
    input_example: Any = None,
    signature: ModelSignature | None = None,
    trust: Sequence[str] = (),
    code_paths: Sequence[str] | None = None,
    pip_requirements: Sequence[str] | None = None,
    mlflow_model: Model | None = None,
) -> None:
    """Save a fitted model as an MLflow model in a local folder; arguments as of :func:`log_model`.

    Raises:
        ConfigError: if it is no fitted model, or needs a pickle.
        ImportError: if MLflow is missing.
    """
    _need_mlflow()
    import mlflow.pyfunc
    from mlflow.models import Model

    if not isinstance(model, MODELS):
        raise ConfigError(
            f"model={model!r:.100}: expected a fitted model of sparkdl. Of a pipeline, log the model among "
            "its stages"
        )
    served = ServedModel(model)
    mlflow_model = mlflow_model or Model()
    mlflow_model.add_flavor(NAME, data=_DATA, sparkdl_version=__version__, model_class=type(model).__name__)
    with tempfile.TemporaryDirectory(prefix="sparkdl-mlflow-") as folder:
        data = Path(folder, _FOLDER)
        save_local(model, data)
        mlflow.pyfunc.save_model(
            path,
            loader_module=_LOADER,
            data_path=str(data),
            mlflow_model=mlflow_model,
            signature=signature or signature_of(served),
            input_example=example_of(served, input_example),
            model_config={"trust": list(trust)} if trust else None,
            code_paths=None if code_paths is None else list(code_paths),
            pip_requirements=list(_requirements() if pip_requirements is None else pip_requirements),
        )


def load_model(model_uri: str, *, trust: Entry | Iterable[Entry] = (), dst_path: str | None = None) -> Any:
    """Load a model that :func:`log_model` logged, for ``transform``; it is read without Spark.

    Args:
        model_uri: such as ``models:/churn/3`` or ``runs:/<run_id>/model``.
        trust: packages, modules or classes that the model may name besides those of torch, torchmetrics and
            sparkdl. Nothing else is imported, whatever the MLmodel file says.
        dst_path: local folder to download to; a temporary one by default.

    Raises:
        ConfigError: if it is no model of this flavour, cannot be read or names code that is not trusted.
        ImportError: if MLflow is missing.
    """
    _need_mlflow()
    import mlflow.artifacts
    from mlflow.models import Model

    local = Path(mlflow.artifacts.download_artifacts(artifact_uri=model_uri, dst_path=dst_path))
    flavours = Model.load(str(local)).flavors
    if NAME not in flavours:
        raise ConfigError(
            f"model_uri={model_uri!r} has the flavours {', '.join(flavours)}: expected one that "
            "sparkdl.mlflow.log_model has logged",
            code="config-saved",
        )
    data = local / _DATA
    return read_fitted(str(data), trust=trust)[0]


def _need_mlflow() -> None:
    if find_spec("mlflow") is None:
        raise ImportError("sparkdl.mlflow needs the mlflow package: pip install 'sparkdl[mlflow]'")


def _requirements() -> list[str]:
    """Return what it takes to load a model, with the versions of this process."""
    found = [f"sparkdl=={__version__}"]
    for package in _WITH:
        try:
            found.append(f"{package}=={version(package).partition('+')[0]}")
        except PackageNotFoundError:
            continue
    return found
