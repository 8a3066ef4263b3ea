"""Vector functions of MKL, bound by one thread before several call them at once.

Torch hands ``sqrt``, ``exp`` and others of long float tensors to MKL, a part to each thread. MKL looks for
the kernel at a function's first call. Where several threads make that call together, one of them may compute
its part with a kernel of twelve bits (oneMKL 2024.2, https://github.com/pytorch/pytorch/issues/188792): in
one of some hundred processes the first step of Adam was wrong by 2e-4 of its length, in silence.
"""

from __future__ import annotations

import torch

_FUNCTIONS = (
    "acos asin atan cos cosh erf erfc erfinv exp expm1 log log10 log1p log2 sin sinh sqrt tan tanh trunc"
)
"""What torch may compute by MKL's vector functions."""


def bind() -> None:
    """Call each function once, on one value, which takes no other thread: forked processes have it, too."""
    for dtype in (torch.float32, torch.float64):
        value = torch.full((1,), 0.5, dtype=dtype, device="cpu")
        for name in _FUNCTIONS.split():
            getattr(torch, name)(value)
