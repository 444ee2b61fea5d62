"""What is computed with each rank's piece of a tensor, beside the same of the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sharding_models import refused
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from dream.adapters.pytorch.parallel.tensor.local_shard import LocalShard, to_whole
from dream.adapters.pytorch.parallel.tensor.parallelism import WholeTensorMode

HEADS, TIME, DEPTH = 4, 6, 8
MASK = torch.arange(TIME).view(TIME, 1) < torch.arange(TIME)
BY_HEAD = torch.arange(float(HEADS)).view(HEADS, 1, 1)

OPERATIONS: dict[str, tuple[bool, Callable[[Any], Any]]] = {
    "flatten": (True, lambda z: z.transpose(1, 2).flatten(2)),
    "reshape": (True, lambda z: z.transpose(1, 2).reshape(2, TIME, -1)),
    "back and forth": (True, lambda z: z.transpose(1, 2).flatten(-2).unflatten(-1, (HEADS, -1))),
    "view": (True, lambda z: z.permute(0, 2, 1, 3).contiguous().view(2, TIME, HEADS * DEPTH)),
    "merged with samples": (False, lambda z: z.reshape(2 * HEADS, TIME, DEPTH)),
    "scaled": (True, lambda z: (2.0 * z - 1.0) / 3.0 + -z),
    "softmax": (True, lambda z: z.softmax(dim=-1) * F.softmax(z, 2)),
    "softmax of heads": (False, lambda z: z.softmax(1)),
    "masked": (True, lambda z: (z @ z.transpose(-2, -1)).masked_fill(
        MASK, float("-inf")).softmax(-1)),
    "by head": (True, lambda z: z + BY_HEAD),
    "attention": (True, lambda z: F.scaled_dot_product_attention(z, z, z, is_causal=True)),
    "masked attention": (True, lambda z: F.scaled_dot_product_attention(
        query=z, key=z, value=z, attn_mask=~MASK)),
    "activations": (True, lambda z: F.gelu(torch.relu(z)) + torch.tanh(z).sigmoid()),
    "in place": (True, lambda z: F.relu((z * 1.0).mul_(2.0).add_(z), inplace=True)),
    "indexed": (False, lambda z: z[:, :, 0]),
    "reduced": (False, lambda z: z.mean(dim=(1, 3)) + z.mean()),
    "einsum": (True, lambda z: torch.einsum("bhtd,bhsd->bhts", z, z)),
    "joined": (False, lambda z: torch.cat([z, z], dim=-1)),
    "chunks": (False, lambda z: torch.stack([*z.chunk(2, -1)])),
    "shapes": (True, lambda z: z * z.shape[1] * z.size(-1) + z.dim()),
}  # fmt: skip
"""Whether each rank goes on with its own piece, and the operation on (2, heads, time, depth)."""


def pieces(ranks: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (ranks,))
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(2, HEADS, TIME, DEPTH, generator=draw)
    found: dict[str, Any] = {}
    for name, (stays, operation) in OPERATIONS.items():
        full = x.clone().requires_grad_()
        right = operation(full)
        right.square().sum().backward()
        ours = x.clone().requires_grad_()
        piece = LocalShard(ours.chunk(ranks, 1)[mesh.get_local_rank()].clone(), 1, mesh)
        with WholeTensorMode(mesh):
            result = operation(piece)
        value = to_whole(result)
        value.square().sum().backward()
        mine = [t.grad.chunk(ranks, 1)[mesh.get_local_rank()] for t in (ours, full)]
        found[name] = {
            "stays": isinstance(result, LocalShard) == stays,
            "apart": float((value - right).detach().abs().max()),
            "gradients": float((mine[0] - mine[1]).abs().max()),
        }
    with WholeTensorMode(mesh):
        found["refused"] = {
            name: refused(lambda name=name: getattr(piece, name)())
            for name in ("requires_grad_", "sigmoid_", "retain_grad")
        }
    return found
