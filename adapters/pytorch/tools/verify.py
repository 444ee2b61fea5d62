"""Observe a loop that is the user's own for `dream verify` (where backward starts, which modules
are called, how long datasets are), and take out of it what a difference may come of. torch is
changed once, for the life of a process that is verified.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from inspect import signature
from typing import Any, final

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import DataLoader

from dream._errors import Unsupported
from dream.adapters.pytorch.loss import LossObserver
from dream.tools.record import RecordRequest, Traits
from dream.tools.recorder import Recorder

_DROPPING = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)


def traits(model: nn.Module) -> Traits:
    """Read off the module's parts, as they are now."""
    named = list(model.named_modules())
    return Traits(
        dtype=_dtype(model),
        trained={name for name, p in model.named_parameters() if p.requires_grad},
        draws=[_told(name, part) for name, part in named if _drops(part)],
        statistics=[_told(name, part) for name, part in named if _normalises_locally(part)],
        named=lambda name: name,
    )


def nudge(model: nn.Module) -> bool:
    """Change each number of its parameters by a rounding, up or down; return that it has some."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in filter(torch.is_floating_point, model.parameters()):
            up = torch.randint(2, p.shape, generator=draw).to(p) * 2 - 1  # in its dtype, as eps is
            p.mul_(1 + up * torch.finfo(p.dtype).eps)
    return True


def _dtype(model: nn.Module) -> str:
    """Return the coarsest float among its parameters."""
    found = {p.dtype for p in model.parameters() if p.dtype.is_floating_point}
    widest_step = max(found, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
    return str(widest_step).removeprefix("torch.")


def _drops(part: nn.Module) -> bool:
    if not isinstance(part, _DROPPING):
        return False
    return bool(part.p if isinstance(part, nn.modules.dropout._DropoutNd) else part.dropout)


def _normalises_locally(part: nn.Module) -> bool:
    batch = isinstance(part, nn.modules.batchnorm._BatchNorm)
    return batch and not isinstance(part, nn.SyncBatchNorm)


def _told(name: str, part: nn.Module) -> str:
    return f"{name or 'the model'} ({type(part).__name__})"


_DROPOUTS = (
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
)  # fmt: skip


def change(request: RecordRequest) -> None:
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
    """Return the pieces' rows in the samples' order."""
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


_GLANCE = 1024
"""Numbers of an input that are looked at."""
_LOOKS = 3
"""Steps in which the generators are looked at."""


def observe(recorder: Recorder) -> None:
    """From now on, tell the recorder."""
    seen = TorchHooks(recorder)
    torch.autograd.backward = seen.backward(torch.autograd.backward)
    torch.amp.GradScaler.scale = seen.losses.scale(torch.amp.GradScaler.scale)  # type: ignore[method-assign]
    nn.Module.__call__ = seen.call(nn.Module.__call__)  # type: ignore[method-assign]
    DataLoader.__init__ = seen.loader(DataLoader.__init__)  # type: ignore[method-assign]
    torch.autocast.__enter__ = seen.autocast(torch.autocast.__enter__)  # type: ignore[method-assign]
    change(recorder.request)


@final
class TorchHooks:
    """Wraps torch's functions. Keeps what was seen since the last backward."""

    def __init__(self, recorder: Recorder) -> None:
        self.losses = LossObserver()
        self._recorder = recorder
        self._given: tuple[int | None, int | None] = (None, None)
        self._outermost = True
        self._looks = 0

    def backward(self, original: Callable[..., None]) -> Callable[..., None]:
        """`torch.autograd.backward`: one that starts from a number is a step."""

        @wraps(original)
        def wrapped(tensors: Any, *args: Any, **kwargs: Any) -> None:
            loss = None if self._recorder.inside else self.losses.number(tensors)
            if loss is None:
                return original(tensors, *args, **kwargs)
            self._recorder.before_step()
            self._recorder.step(loss, *self._given, local=True)
            self._given = (None, None)
            with self._recorder.whole_step():
                return original(tensors, *args, **kwargs)

        return wrapped

    def call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`Module.__call__`: the outermost one with gradients on is of a model that is trained."""

        @wraps(original)
        def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._outermost or not _trains(module):
                return original(module, *args, **kwargs)
            with self._called(module, args, kwargs):
                return original(module, *args, **kwargs)

        return wrapped

    def loader(self, original: Callable[..., None]) -> Callable[..., None]:
        """`DataLoader.__init__`: how many samples there are."""

        @wraps(original)
        def wrapped(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            with suppress(TypeError):  # a stream, or Keras's own of one array, has no length
                if not self._recorder.inside:
                    self._recorder.saw_dataset(len(loader.dataset))  # type: ignore[arg-type]

        return wrapped

    def autocast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`autocast.__enter__`, around a model that is trained or inside it."""

        @wraps(original)
        def wrapped(cast: torch.autocast) -> Any:
            entered = original(cast)
            if torch.is_grad_enabled() and torch.is_autocast_enabled(cast.device):
                self._recorder.saw_dtype(str(torch.get_autocast_dtype(cast.device))[6:])
            return entered

        return wrapped

    @contextmanager
    def _called(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[None]:
        if not self._recorder.inside:
            self._recorder.before_step()  # here, no graph or unsharded parameter is left half done
            self._recorder.saw_model(module, traits)
            if self._given == (None, None):
                self._given = _input((args, kwargs))
        looks, self._looks = self._looks < _LOOKS, self._looks + 1
        before = _generators() if looks else []
        self._outermost = False
        try:
            yield
        finally:
            self._outermost = True
        if any(not torch.equal(a, b) for a, b in zip(before, _generators(), strict=False)):
            self._recorder.saw_draw(f"a forward pass of {type(module).__name__}")


def _trains(module: nn.Module) -> bool:
    """Return whether a call now is a training loop's; a recomputation during backward is none, and
    dream's own modules are no user's."""
    if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
        return False
    kinds = {base.__module__.partition(".")[0] for base in type(module).__mro__}
    return not kinds & {"dream", "keras"} and any(p.requires_grad for p in module.parameters())


def _input(given: Any) -> tuple[int | None, int | None]:
    """(samples, glance) of the first tensor."""
    first = next((x for x in tree_leaves(given) if isinstance(x, torch.Tensor) and x.dim()), None)
    if first is None:
        return None, None
    if first.device.type != "cpu" or first.dtype is torch.bfloat16:
        return len(first), None
    start = first.detach()[:8].reshape(-1)[:_GLANCE].contiguous()
    return len(first), zlib.crc32(start.numpy().data)


def _generators() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return states
