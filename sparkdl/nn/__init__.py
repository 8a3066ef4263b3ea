"""Training's view of a module: its flat form, the gradient of a batch, and so on.

Beside it lie models to train (``models``) and how modules are saved (``saved``).

Models load when they are first used: the executors import single modules of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl.lazy import lazy

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

_HOMES = {
    "sparkdl.keyed.bloom": "CountingBloom",
    "sparkdl.nn.embedding": "EmbeddingBagVariable EmbeddingVariable",
    "sparkdl.nn.models.anomaly": "AnomalyDetector",
    "sparkdl.nn.models.autoencoder": "Autoencoder ConvAutoencoder",
    "sparkdl.nn.models.convlstm": "ConvLSTM",
    "sparkdl.nn.models.deepfm": "DeepFM",
    "sparkdl.nn.models.din": "DIN",
    "sparkdl.nn.models.dlrm": "DLRM",
    "sparkdl.nn.models.forecaster": "Forecaster Pinball",
    "sparkdl.nn.models.gru4rec": "GRU4Rec",
    "sparkdl.nn.models.inception": "GoogLeNet",
    "sparkdl.nn.models.knrm": "KNRM",
    "sparkdl.nn.models.lenet": "LeNet5",
    "sparkdl.nn.models.mlp": "MLP",
    "sparkdl.nn.models.nbeats": "InterpretableNBeats NBeats",
    "sparkdl.nn.models.neuralcf": "NeuralCF",
    "sparkdl.nn.models.patch_transformer": "PatchTransformer",
    "sparkdl.nn.models.recurrent": "RecurrentClassifier",
    "sparkdl.nn.models.resnet": "ResNet ResNet20",
    "sparkdl.nn.models.seq2seq": "Seq2Seq",
    "sparkdl.nn.models.sparse": "SparseLinear SparseMLP",
    "sparkdl.nn.models.ssd": "SSD",
    "sparkdl.nn.models.tabular": "Tabular",
    "sparkdl.nn.models.tcn": "TCN",
    "sparkdl.nn.models.textcnn": "TextCNN",
    "sparkdl.nn.models.top_k": "Recommender TopK",
    "sparkdl.nn.models.transformer": "TransformerClassifier",
    "sparkdl.nn.models.two_tower": "TwoTower in_batch_step",
    "sparkdl.nn.models.variables": "AdaptiveVariable DynamicDimensionVariable MultiHashVariable",
    "sparkdl.nn.models.vgg": "VGG",
    "sparkdl.nn.models.wide_and_deep": "WideAndDeep",
}

__all__, __getattr__, __dir__ = lazy(__name__, _HOMES)
