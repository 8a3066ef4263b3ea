"""Modules, their flat form, and the gradient of a batch.

Models load when they are first used: the executors import single modules of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.nn.anomaly import AnomalyDetector as AnomalyDetector
    from sparkdl.nn.autoencoder import Autoencoder as Autoencoder
    from sparkdl.nn.autoencoder import ConvAutoencoder as ConvAutoencoder
    from sparkdl.nn.convlstm import ConvLSTM as ConvLSTM
    from sparkdl.nn.deepfm import DeepFM as DeepFM
    from sparkdl.nn.dlrm import DLRM as DLRM
    from sparkdl.nn.gru4rec import GRU4Rec as GRU4Rec
    from sparkdl.nn.inception import GoogLeNet as GoogLeNet
    from sparkdl.nn.knrm import KNRM as KNRM
    from sparkdl.nn.lenet import LeNet5 as LeNet5
    from sparkdl.nn.mlp import MLP as MLP
    from sparkdl.nn.nbeats import InterpretableNBeats as InterpretableNBeats
    from sparkdl.nn.nbeats import NBeats as NBeats
    from sparkdl.nn.neuralcf import NeuralCF as NeuralCF
    from sparkdl.nn.recurrent import RecurrentClassifier as RecurrentClassifier
    from sparkdl.nn.resnet import ResNet as ResNet
    from sparkdl.nn.resnet import ResNet20 as ResNet20
    from sparkdl.nn.seq2seq import Seq2Seq as Seq2Seq
    from sparkdl.nn.ssd import SSD as SSD
    from sparkdl.nn.tcn import TCN as TCN
    from sparkdl.nn.textcnn import TextCNN as TextCNN
    from sparkdl.nn.transformer import TransformerClassifier as TransformerClassifier
    from sparkdl.nn.vgg import VGG as VGG
    from sparkdl.nn.wide_and_deep import WideAndDeep as WideAndDeep

_HOME = {
    "AnomalyDetector": "sparkdl.nn.anomaly",
    "Autoencoder": "sparkdl.nn.autoencoder",
    "ConvAutoencoder": "sparkdl.nn.autoencoder",
    "ConvLSTM": "sparkdl.nn.convlstm",
    "DLRM": "sparkdl.nn.dlrm",
    "DeepFM": "sparkdl.nn.deepfm",
    "GRU4Rec": "sparkdl.nn.gru4rec",
    "GoogLeNet": "sparkdl.nn.inception",
    "InterpretableNBeats": "sparkdl.nn.nbeats",
    "KNRM": "sparkdl.nn.knrm",
    "LeNet5": "sparkdl.nn.lenet",
    "MLP": "sparkdl.nn.mlp",
    "NBeats": "sparkdl.nn.nbeats",
    "NeuralCF": "sparkdl.nn.neuralcf",
    "RecurrentClassifier": "sparkdl.nn.recurrent",
    "ResNet": "sparkdl.nn.resnet",
    "ResNet20": "sparkdl.nn.resnet",
    "SSD": "sparkdl.nn.ssd",
    "Seq2Seq": "sparkdl.nn.seq2seq",
    "TCN": "sparkdl.nn.tcn",
    "TextCNN": "sparkdl.nn.textcnn",
    "TransformerClassifier": "sparkdl.nn.transformer",
    "VGG": "sparkdl.nn.vgg",
    "WideAndDeep": "sparkdl.nn.wide_and_deep",
}

__all__ = [
    "DLRM",
    "KNRM",
    "MLP",
    "SSD",
    "TCN",
    "VGG",
    "AnomalyDetector",
    "Autoencoder",
    "ConvAutoencoder",
    "ConvLSTM",
    "DeepFM",
    "GRU4Rec",
    "GoogLeNet",
    "InterpretableNBeats",
    "LeNet5",
    "NBeats",
    "NeuralCF",
    "RecurrentClassifier",
    "ResNet",
    "ResNet20",
    "Seq2Seq",
    "TextCNN",
    "TransformerClassifier",
    "WideAndDeep",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'sparkdl.nn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
