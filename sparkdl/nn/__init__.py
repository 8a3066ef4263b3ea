"""Modules, their flat form, and the gradient of a batch."""

from sparkdl.nn.anomaly import AnomalyDetector
from sparkdl.nn.deepfm import DeepFM
from sparkdl.nn.dlrm import DLRM
from sparkdl.nn.gru4rec import GRU4Rec
from sparkdl.nn.knrm import KNRM
from sparkdl.nn.lenet import LeNet5
from sparkdl.nn.nbeats import InterpretableNBeats, NBeats
from sparkdl.nn.neuralcf import NeuralCF
from sparkdl.nn.tcn import TCN
from sparkdl.nn.wide_and_deep import WideAndDeep

__all__ = [
    "DLRM",
    "KNRM",
    "TCN",
    "AnomalyDetector",
    "DeepFM",
    "GRU4Rec",
    "InterpretableNBeats",
    "LeNet5",
    "NBeats",
    "NeuralCF",
    "WideAndDeep",
]
