"""Optimizers as users write them: they need tensors with their shapes, or all tensors at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import optim


class Shampoo(optim.Optimizer):
    """A matrix on each side of the gradient (Gupta et al., 2018), in lists, as users write it."""

    def __init__(self, params: Any, lr: float = 0.05, eps: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["sides"] = [group["eps"] * torch.eye(n, dtype=p.dtype) for n in p.shape]
                    state["recent"] = deque(maxlen=2)
                update = p.grad
                for dim, side in enumerate(state["sides"]):
                    flat = p.grad.transpose(0, dim).reshape(p.shape[dim], -1)
                    side += flat @ flat.T
                    values, vectors = torch.linalg.eigh(side)
                    root = vectors @ torch.diag(values.clamp(min=1e-6) ** (-0.5 / p.ndim)) @ vectors.T
                    turned = update.transpose(0, dim)
                    update = (root @ turned.reshape(p.shape[dim], -1)).view(turned.shape).transpose(0, dim)
                state["recent"].append(float(p.grad.norm()))
                p.sub_(update, alpha=group["lr"])


class Coupled(optim.Optimizer):
    """Its step length follows from all tensors; it is kept in the group, and steps in an attribute."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "d": 1e-2})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for group in self.param_groups:
            used = [p for p in group["params"] if p.grad is not None]
            norm = torch.stack([p.grad.norm() for p in used]).norm()
            group["d"] = max(group["d"], float(norm) / (10 + self.steps))
            for p in used:
                p.sub_(p.grad / norm, alpha=group["lr"] * group["d"])


class HalfMomentum(optim.Optimizer):
    """Normalises each tensor's momentum, which it keeps in bfloat16; one step count is no tensor's."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    before = state.get("momentum", torch.zeros_like(p))
                    state["momentum"] = (0.9 * before.to(p.dtype) + p.grad).to(torch.bfloat16)
                    direction = state["momentum"].to(p.dtype)
                    p.sub_(direction / (direction.norm() + 1e-8), alpha=group["lr"])


class Langevin(optim.Optimizer):
    """Adds noise to each step."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad + 0.1 * torch.randn_like(p), alpha=group["lr"])


class LargeMatrices(optim.Optimizer):
    """Elementwise on small tensors; on matrices with sides from 16 on it normalises rows."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    large = p.ndim == 2 and min(p.shape) >= 16
                    scale = p.grad.norm(dim=1, keepdim=True) + 1e-8 if large else 1.0
                    p.sub_(p.grad / scale, alpha=group["lr"])


class Split:
    """Several optimizers in plain torch, each for some of the tensors."""

    def __init__(self, tensors: Any, *parts: tuple[Callable[[Any], bool], Any]) -> None:
        self.parts = [made([t for t in tensors if which(t)]) for which, made in parts]

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        for part in self.parts:
            part.step()
