"""What training needs of a module: its flat form, the gradient of a batch, and so on.

Beside it lie models to train (``models``) and how modules are saved (``saved``).

Models load when they are first used: the executors import single modules of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.keyed.bloom import CountingBloom as CountingBloom
    from sparkdl.nn.embedding import EmbeddingBagVariable as EmbeddingBagVariable
    from sparkdl.nn.embedding import EmbeddingVariable as EmbeddingVariable
    from sparkdl.nn.models.anomaly import AnomalyDetector as AnomalyDetector
    from sparkdl.nn.models.autoencoder import Autoencoder as Autoencoder
    from sparkdl.nn.models.autoencoder import ConvAutoencoder as ConvAutoencoder
    from sparkdl.nn.models.convlstm import ConvLSTM as ConvLSTM
    from sparkdl.nn.models.deepfm import DeepFM as DeepFM
    from sparkdl.nn.models.din import DIN as DIN
    from sparkdl.nn.models.dlrm import DLRM as DLRM
    from sparkdl.nn.models.forecaster import Forecaster as Forecaster
    from sparkdl.nn.models.forecaster import Pinball as Pinball
    from sparkdl.nn.models.gru4rec import GRU4Rec as GRU4Rec
    from sparkdl.nn.models.inception import GoogLeNet as GoogLeNet
    from sparkdl.nn.models.knrm import KNRM as KNRM
    from sparkdl.nn.models.lenet import LeNet5 as LeNet5
    from sparkdl.nn.models.mlp import MLP as MLP
    from sparkdl.nn.models.nbeats import InterpretableNBeats as InterpretableNBeats
    from sparkdl.nn.models.nbeats import NBeats as NBeats
    from sparkdl.nn.models.neuralcf import NeuralCF as NeuralCF
    from sparkdl.nn.models.patch_transformer import PatchTransformer as PatchTransformer
    from sparkdl.nn.models.recurrent import RecurrentClassifier as RecurrentClassifier
    from sparkdl.nn.models.resnet import ResNet as ResNet
    from sparkdl.nn.models.resnet import ResNet20 as ResNet20
    from sparkdl.nn.models.seq2seq import Seq2Seq as Seq2Seq
    from sparkdl.nn.models.sparse import SparseLinear as SparseLinear
    from sparkdl.nn.models.sparse import SparseMLP as SparseMLP
    from sparkdl.nn.models.ssd import SSD as SSD
    from sparkdl.nn.models.tabular import Tabular as Tabular
    from sparkdl.nn.models.tcn import TCN as TCN
    from sparkdl.nn.models.textcnn import TextCNN as TextCNN
    from sparkdl.nn.models.top_k import Recommender as Recommender
    from sparkdl.nn.models.top_k import TopK as TopK
    from sparkdl.nn.models.transformer import TransformerClassifier as TransformerClassifier
    from sparkdl.nn.models.two_tower import TwoTower as TwoTower
    from sparkdl.nn.models.two_tower import in_batch_step as in_batch_step
    from sparkdl.nn.models.variables import AdaptiveVariable as AdaptiveVariable
    from sparkdl.nn.models.variables import DynamicDimensionVariable as DynamicDimensionVariable
    from sparkdl.nn.models.variables import MultiHashVariable as MultiHashVariable
    from sparkdl.nn.models.vgg import VGG as VGG
    from sparkdl.nn.models.wide_and_deep import WideAndDeep as WideAndDeep

_HOME = {
    "AdaptiveVariable": "sparkdl.nn.models.variables",
    "AnomalyDetector": "sparkdl.nn.models.anomaly",
    "Autoencoder": "sparkdl.nn.models.autoencoder",
    "ConvAutoencoder": "sparkdl.nn.models.autoencoder",
    "ConvLSTM": "sparkdl.nn.models.convlstm",
    "CountingBloom": "sparkdl.keyed.bloom",
    "DIN": "sparkdl.nn.models.din",
    "DLRM": "sparkdl.nn.models.dlrm",
    "DeepFM": "sparkdl.nn.models.deepfm",
    "DynamicDimensionVariable": "sparkdl.nn.models.variables",
    "EmbeddingBagVariable": "sparkdl.nn.embedding",
    "EmbeddingVariable": "sparkdl.nn.embedding",
    "Forecaster": "sparkdl.nn.models.forecaster",
    "GRU4Rec": "sparkdl.nn.models.gru4rec",
    "GoogLeNet": "sparkdl.nn.models.inception",
    "InterpretableNBeats": "sparkdl.nn.models.nbeats",
    "KNRM": "sparkdl.nn.models.knrm",
    "LeNet5": "sparkdl.nn.models.lenet",
    "MLP": "sparkdl.nn.models.mlp",
    "MultiHashVariable": "sparkdl.nn.models.variables",
    "NBeats": "sparkdl.nn.models.nbeats",
    "NeuralCF": "sparkdl.nn.models.neuralcf",
    "PatchTransformer": "sparkdl.nn.models.patch_transformer",
    "Pinball": "sparkdl.nn.models.forecaster",
    "Recommender": "sparkdl.nn.models.top_k",
    "RecurrentClassifier": "sparkdl.nn.models.recurrent",
    "ResNet": "sparkdl.nn.models.resnet",
    "ResNet20": "sparkdl.nn.models.resnet",
    "SSD": "sparkdl.nn.models.ssd",
    "Seq2Seq": "sparkdl.nn.models.seq2seq",
    "SparseLinear": "sparkdl.nn.models.sparse",
    "SparseMLP": "sparkdl.nn.models.sparse",
    "TCN": "sparkdl.nn.models.tcn",
    "Tabular": "sparkdl.nn.models.tabular",
    "TextCNN": "sparkdl.nn.models.textcnn",
    "TopK": "sparkdl.nn.models.top_k",
    "TransformerClassifier": "sparkdl.nn.models.transformer",
    "TwoTower": "sparkdl.nn.models.two_tower",
    "VGG": "sparkdl.nn.models.vgg",
    "WideAndDeep": "sparkdl.nn.models.wide_and_deep",
    "in_batch_step": "sparkdl.nn.models.two_tower",
}

__all__ = [
    "DIN",
    "DLRM",
    "KNRM",
    "MLP",
    "SSD",
    "TCN",
    "VGG",
    "AdaptiveVariable",
    "AnomalyDetector",
    "Autoencoder",
    "ConvAutoencoder",
    "ConvLSTM",
    "CountingBloom",
    "DeepFM",
    "DynamicDimensionVariable",
    "EmbeddingBagVariable",
    "EmbeddingVariable",
    "Forecaster",
    "GRU4Rec",
    "GoogLeNet",
    "InterpretableNBeats",
    "LeNet5",
    "MultiHashVariable",
    "NBeats",
    "NeuralCF",
    "PatchTransformer",
    "Pinball",
    "Recommender",
    "RecurrentClassifier",
    "ResNet",
    "ResNet20",
    "Seq2Seq",
    "SparseLinear",
    "SparseMLP",
    "Tabular",
    "TextCNN",
    "TopK",
    "TransformerClassifier",
    "TwoTower",
    "WideAndDeep",
    "in_batch_step",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'sparkdl.nn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
