"""Modules, their flat form, and the gradient of a batch."""

from sparkdl.nn.lenet import LeNet5
from sparkdl.nn.neuralcf import NeuralCF

__all__ = ["LeNet5", "NeuralCF"]
