"""Records of a run: hooks for TensorBoard, MLflow, JSON lines, logs and timelines."""

from sparkdl.summary.interval import Thinning
from sparkdl.summary.jsonl import JsonLines
from sparkdl.summary.log import LogLine
from sparkdl.summary.mlflow import MLflow, autolog, automatic
from sparkdl.summary.tensorboard import TensorBoard
from sparkdl.train.hooks.timeline import Timeline

__all__ = ["JsonLines", "LogLine", "MLflow", "TensorBoard", "Thinning", "Timeline", "autolog", "automatic"]
