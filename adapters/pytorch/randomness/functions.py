"""Torch's functions that draw random numbers, or put rows one after another."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from dream.adapters.pytorch.private import BY_REJECTION, VF

DrawKind = Literal["mask", "channels", "rows", "values", "fill", "like", "size", "normal",
                   "attention", "pick", "seed", "join", "repeat", "again"]  # fmt: skip
DRAWS: tuple[tuple[DrawKind, tuple[Any, ...], tuple[str, ...]], ...] = (
    ("mask", (torch, VF), ("dropout", "dropout_")),
    ("channels", (torch, VF), ("feature_dropout", "feature_dropout_")),
    ("rows", (torch, VF), ("alpha_dropout", "feature_alpha_dropout", "alpha_dropout_",
                           "feature_alpha_dropout_")),
    ("rows", (torch, torch.Tensor), ("bernoulli", "multinomial")),
    ("values", (torch,), ("poisson", *BY_REJECTION)),
    ("fill", (torch.Tensor,), ("normal_", "uniform_", "bernoulli_", "exponential_", "random_",
                               "cauchy_", "log_normal_", "geometric_")),
    ("like", (torch,), ("randn_like", "rand_like", "randint_like")),
    ("size", (torch,), ("randn", "rand", "randint")),
    ("normal", (torch,), ("normal",)),
    ("attention", (nn.functional,), ("scaled_dot_product_attention",)),
    ("pick", (torch, torch.utils.data.dataset), ("randperm",)),  # there for random_split
    ("seed", (torch, torch.random), ("manual_seed", "seed", "set_rng_state")),
    ("join", (torch,), ("cat", "concat", "concatenate", "vstack", "row_stack", "stack")),
    ("repeat", (torch.Tensor,), ("repeat", "tile", "expand")),
    ("repeat", (torch,), ("tile",)),
    ("again", (torch.utils.checkpoint,), ("checkpoint",)),
)  # fmt: skip
"""What draws random numbers, by how a rank's rows are had of it; sets generators; joins rows; and
draws again."""
