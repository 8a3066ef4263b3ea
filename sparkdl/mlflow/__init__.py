"""Fitted models in MLflow: logged, registered, loaded, and served by what MLflow has for any model.

::

    import sparkdl.mlflow

    info = sparkdl.mlflow.log_model(model, registered_model_name="churn")
    model = sparkdl.mlflow.load_model("models:/churn/1")  # a model for transform
    predict = mlflow.pyfunc.spark_udf(spark, info.model_uri)  # or mlflow models serve -m ...

What is logged is the folder of a saved model: JSON and safetensors, no pickle.
"""

from sparkdl.mlflow.autologging import autolog
from sparkdl.mlflow.flavour import load_model, log_model, save_model

__all__ = ["autolog", "load_model", "log_model", "save_model"]
