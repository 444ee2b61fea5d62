"""What `dream verify` takes out of training, to see whether a difference goes with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from dream._errors import Unsupported
from dream.tools.recording.request import Request

_DROPOUTS = (
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
)  # fmt: skip


def change(request: Request) -> None:
    """Change what the request names, for the life of this process."""
    if "no dropout" in request.changes:
        for name in _DROPOUTS:
            setattr(F, name, _kept_whole)
        F.scaled_dot_product_attention = _without_dropout(F.scaled_dot_product_attention)
        nn.RNNBase.__init__ = _undropped(nn.RNNBase.__init__)  # type: ignore[method-assign]
    if "fixed statistics" in request.changes:
        F.batch_norm = _fixed(F.batch_norm)
    if request.parts > 1:
        whole = "reordered" in request.changes
        nn.Module.__call__ = _in_parts(nn.Module.__call__, request.parts, whole=whole)  # type: ignore[method-assign]


def _kept_whole(input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return input


def _without_dropout(attention: Callable[..., Any]) -> Callable[..., Any]:
    def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
               *args: Any, **kwargs: Any) -> Any:  # fmt: skip
        del dropout_p
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return attend


def _undropped(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def wrapped(layer: nn.RNNBase, *args: Any, **kwargs: Any) -> None:
        init(layer, *args, **kwargs)
        layer.dropout = 0.0

    return wrapped


def _fixed(batch_norm: Callable[..., Any]) -> Callable[..., Any]:
    known = signature(batch_norm)

    @wraps(batch_norm)
    def normalise(*args: Any, **kwargs: Any) -> Any:
        given = known.bind(*args, **kwargs).arguments
        if given["running_mean"] is not None:
            given["training"] = False
        return batch_norm(**given)

    return normalise


def _in_parts(call: Callable[..., Any], parts: int, *, whole: bool) -> Callable[..., Any]:
    """`Module.__call__` of the outermost module in training: on every parts-th sample at a time,
    so that gradients are summed as ranks sum them. whole: on all of them, in that order."""
    busy = False

    @wraps(call)
    def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal busy
        leaves, layout = tree_flatten((args, kwargs))
        samples = next((len(x) for x in leaves if _batched(x)), 0)
        trains = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
        if busy or samples < parts or not trains:
            return call(module, *args, **kwargs)
        cuts = [torch.arange(part, samples, parts) for part in range(parts)]
        every = torch.cat(cuts)
        busy = True
        try:
            outputs = []
            for cut in [every] if whole else cuts:
                mine = [x[cut] if _rows(x, samples) else x for x in leaves]
                given, named = tree_unflatten(mine, layout)
                outputs.append(call(module, *given, **named))
        finally:
            busy = False
        if whole:
            back = torch.argsort(every)
            return tree_map(lambda x: x[back.to(x.device)] if _rows(x, samples) else x, *outputs)
        return tree_map(lambda *pieces: _joined(pieces, samples), *outputs)

    return wrapped


def _rows(x: Any, samples: int) -> bool:
    return _batched(x) and len(x) == samples


def _batched(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dim() > 0


def _joined(pieces: tuple[Any, ...], samples: int) -> Any:
    """The pieces' rows in the samples' order."""
    if not isinstance(pieces[0], torch.Tensor):
        return pieces[0]
    if sum(len(piece) if piece.dim() else 0 for piece in pieces) != samples:
        raise Unsupported(
            "The model gives no row a sample, so it cannot work on a batch in parts. Received: "
            f"shapes {[tuple(piece.shape) for piece in pieces]} for {samples} samples. Let it give "
            "one, to have rounding told from other differences."
        )
    places = torch.cat([torch.arange(p, samples, len(pieces)) for p in range(len(pieces))])
    return torch.cat(pieces)[torch.argsort(places).to(pieces[0].device)]
