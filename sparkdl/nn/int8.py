"""Linear and convolution layers that multiply 8-bit integers.

The scheme of dynamic quantization: weights are rounded once, with a scale for each output; inputs are rounded
as they come, with a scale for each row; products are summed as 32-bit integers.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LARGEST = 127
_TINY = 1e-30
_MIDDLE = 128  # oneDNN's convolutions take unsigned inputs: this stands for 0
_MOST_INPUTS = (2**31 - 1) // ((_LARGEST + _MIDDLE) * _LARGEST)  # of an output, whose sum has 32 bits
_LEAST_CHANNELS = 4  # of a group; with fewer, as of images, rounding costs more than it saves


class _Rounded(nn.Module):
    """Weights of 8 bits (``values``), their factor for each output (``scale``), and the bias."""

    values: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear | nn.Conv2d) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight.abs().flatten(1).amax(1).clamp_min(_TINY) / _LARGEST
        self.register_buffer("values", (weight / _beside(scale, weight)).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().float())

    @property
    def weight(self) -> Tensor:
        """The weights as floats, for code that does not call the layer but reads them."""
        return self.values.float() * _beside(self.scale, self.values)


def _beside(scale: Tensor, weight: Tensor) -> Tensor:
    """Return a number for each output in a shape that goes with that of the weights."""
    return scale.view(-1, *[1] * (weight.dim() - 1))


class Int8Linear(_Rounded):
    """A linear layer with 8-bit weights, for inference on the CPU.

    Shapes:
        input: (..., in_features), floating point.
        output: (..., out_features), same dtype.

    Attributes:
        in_features: size of the input.
        out_features: size of the output.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        if x.is_nested:  # nn.TransformerEncoder leaves out what its mask hides
            parts = x.unbind()
            found = self(torch.cat(parts)).split([len(part) for part in parts])
            return torch.nested.as_nested_tensor(list(found))
        rows = x.reshape(-1, self.in_features).float()
        scale = rows.abs().amax(1, keepdim=True).clamp_min(_TINY) / _LARGEST
        rounded = (rows / scale).round().to(torch.int8)
        sums = torch._int_mm(rounded, self.values.t())
        result = sums.float().mul_(scale).mul_(self.scale)
        if self.bias is not None:
            result += self.bias
        return result.to(x.dtype).reshape(*x.shape[:-1], self.out_features)


class Int8Conv2d(_Rounded):
    """A convolution with 8-bit weights, for inference on the CPU.

    It multiplies integers with oneDNN on processors with VNNI instructions. Others could overflow, so there
    it multiplies floats, with the rounded weights.

    Args:
        conv: the layer to round; it is not changed. Its padding is of zeros, and given as numbers.

    Shapes:
        input: (rows, in_channels, height, width), floating point.
        output: (rows, out_channels, ...), same dtype.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__(conv)
        self._geometry: tuple[Any, ...] = (
            list(conv.stride),
            list(conv.padding),
            list(conv.dilation),
            conv.groups,
        )
        self._packed: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the packed weights: they can be neither pickled nor copied."""
        return {**self.__dict__, "_packed": None}

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        if not (_has_vnni() and x.is_cpu and x.dim() == 4 and len(x)):
            return F.conv2d(x.float(), self.weight, self.bias, *self._geometry).to(x.dtype)
        rows = x.float()
        scale = rows.abs().amax((1, 2, 3), keepdim=True).clamp_min(_TINY) / _LARGEST
        rounded = (rows / scale).round_().add_(_MIDDLE).to(torch.uint8)
        if self._packed is None:
            self._packed = torch.ops.onednn.qconv_prepack(
                self.values, self.scale, 1.0, _MIDDLE, *self._geometry, None
            )
        zeros = torch.zeros(len(self.scale), dtype=torch.int64)
        result: Tensor = torch.ops.onednn.qconv2d_pointwise(
            *(rounded, 1.0, _MIDDLE, self._packed, self.scale, zeros, None, *self._geometry),
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        result = result.mul_(scale)
        if self.bias is not None:
            result += self.bias[:, None, None]
        return result.to(x.dtype)


@lru_cache(maxsize=1)
def _has_vnni() -> bool:
    """Whether this processor multiplies unsigned with signed bytes without overflow, if torch knows."""
    names = ("_is_vnni_supported", "_is_avx512_vnni_supported")
    asks = next((getattr(torch.cpu, name) for name in names if hasattr(torch.cpu, name)), None)
    return bool(asks and asks()) and hasattr(torch.ops.onednn, "qconv2d_pointwise")


def _rounded(part: nn.Module) -> nn.Module | None:
    """Return what takes a layer's place; ``None`` for a layer that stays, as one with hooks does."""
    if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part):
        return None
    if type(part) in (nn.Linear, nn.Conv2d) and cast(Tensor, part.weight).flatten(1).shape[1] > _MOST_INPUTS:
        return None
    if type(part) is nn.Linear:
        return Int8Linear(part)
    if type(part) is nn.Conv2d and part.padding_mode == "zeros" and not isinstance(part.padding, str):
        return Int8Conv2d(part) if part.in_channels // part.groups >= _LEAST_CHANNELS else None
    return None


def quantize(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose layers are :class:`Int8Linear` and :class:`Int8Conv2d`.

    Only layers that are exactly ``nn.Linear``, or ``nn.Conv2d`` with at least four input channels in each
    group and a padding of zeros that is given as numbers, and have no hooks, are replaced; all other layers
    compute as before. So do those with more than 66,311 inputs of an output, whose sums 32 bits may not hold.
    """
    # deepcopy takes what its memo has for the copy
    replaced = ((part, _rounded(part)) for part in module.modules())
    memo: dict[int, Any] = {id(part): new for part, new in replaced if new is not None}
    result: nn.Module = copy.deepcopy(module, memo)
    for part in result.modules():
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0  # else a fused kernel reads the weights as floats
    return result.eval()
