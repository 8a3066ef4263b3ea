"""The models in sparkdl's own training: flat weights, two partitions, several inputs and labels."""

from functools import partial

import numpy as np
import pytest
import torch
from support.nn_models import digits
from torch import nn
from torch.nn import functional as nnf

from sparkdl import Dataset, Trainer
from sparkdl.nn.models.autoencoder import ConvAutoencoder
from sparkdl.nn.models.convlstm import ConvLSTM
from sparkdl.nn.models.inception import GoogLeNet, googlenet_loss
from sparkdl.nn.models.recurrent import RecurrentClassifier
from sparkdl.nn.models.resnet import ResNet
from sparkdl.nn.models.seq2seq import Seq2Seq, sequence_loss
from sparkdl.nn.models.ssd import SSD, SSDLoss
from sparkdl.nn.models.textcnn import TextCNN
from sparkdl.nn.models.transformer import TransformerClassifier
from sparkdl.nn.models.vgg import VGG
from sparkdl.train import MaxIteration

ROWS = 24
DETECTOR = partial(SSD, 2, size=32, channels=1, widths=(4, 8, 8))


def images(side):
    return tuple(tensor.numpy() for tensor in digits(ROWS, side))


def texts():
    return np.random.default_rng(0).integers(0, 20, (ROWS, 7)), np.arange(ROWS) % 3


def pairs():
    tokens, _ = texts()
    return (tokens, tokens), tokens


def films():
    values = np.random.default_rng(0).random((ROWS, 4, 1, 8, 8)).astype("float32")
    return values, values[:, :2]


def scenes():
    low = np.random.default_rng(0).uniform(0, 0.5, (ROWS, 2, 2))
    corners = np.concatenate([low, low + 0.3], 2).astype("float32")
    return images(32)[0], (corners, np.arange(2 * ROWS).reshape(ROWS, 2) % 3)


CASES = {
    "VGG": (partial(VGG, 11, 10, 32, 1, 4, (8,), batch_norm=True), partial(images, 32), nnf.cross_entropy),
    "ResNet": (partial(ResNet, 50, 10, 1, 4, small=True), partial(images, 32), nnf.cross_entropy),
    "GoogLeNet": (partial(GoogLeNet, 10, 79, 1, auxiliary=True), partial(images, 79), googlenet_loss),
    "TextCNN": (partial(TextCNN, 20, 3, 8, 4), texts, nnf.cross_entropy),
    "LSTM": (partial(RecurrentClassifier, 20, 3, 8, 8, layers=2), texts, nnf.cross_entropy),
    "GRU": (partial(RecurrentClassifier, 20, 3, 8, 8, "gru", bidirectional=True), texts, nnf.cross_entropy),
    "Transformer": (partial(TransformerClassifier, 20, 3, 8, 2, 2, 16), texts, nnf.cross_entropy),
    "Seq2Seq": (partial(Seq2Seq, 20, 20, 8, 8), pairs, sequence_loss),
    "ConvLSTM": (
        partial(ConvLSTM, hidden=(4, 4), steps=2, kernel=3),
        films,
        nnf.binary_cross_entropy_with_logits,
    ),
    "ConvAutoencoder": (
        partial(ConvAutoencoder, 8, 1, (4, 8), 4),
        lambda: (images(8)[0], None),
        nnf.mse_loss,
    ),
    "SSD": (DETECTOR, scenes, SSDLoss(DETECTOR().boxes)),
}


# Batch normalisation, which tests of training have in smaller modules; two inputs; two labels. Others: slow.
MARKS = {"ResNet": pytest.mark.whole, "Seq2Seq": (), "SSD": ()}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, pytest.mark.slow)) for name in CASES]
)
def test_trains_on_two_partitions_and_predicts(spark, name):
    build, rows, loss = CASES[name]
    torch.manual_seed(0)
    module = build()
    features, label = rows()
    trainer = Trainer(
        module,
        loss=loss,
        optimizer=partial(torch.optim.Adam, lr=3e-3),
        batch_size=ROWS,
        end_when=MaxIteration(4),
        progress=False,
    )
    with Dataset.from_numpy(features, label, spark=spark, num_partitions=2) as data:
        result = trainer.fit(data)
        assert isinstance(result.module, type(module))
        assert result.history[-1]["loss"] < result.history[0]["loss"]
        outputs = trainer.predict(data)
    first = outputs[0] if isinstance(outputs, tuple | list) else outputs
    assert len(first) == ROWS
    assert np.isfinite(first).all()
    for layer in result.module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.num_batches_tracked == 4
            assert layer.running_mean.isfinite().all()
