"""Models to train. Their classes are public as ``sparkdl.nn.ResNet`` and so on."""
