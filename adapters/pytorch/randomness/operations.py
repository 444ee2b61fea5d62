"""Torch's random operations, drawn for the global batch: a rank gets its rows.

Each stands for torch's own while a call trains a model, and gives the same bits as torch's own
would on one device. A tensor that has no row of the batch is drawn as it is, alike on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch

from dream._log import say_once
from dream._patches import in_this_context
from dream.adapters.pytorch.randomness import own_places
from dream.adapters.pytorch.randomness.current import Found, current
from dream.adapters.pytorch.randomness.functions import DrawKind
from dream.adapters.pytorch.randomness.joins import joining, joins, repeating
from dream.adapters.pytorch.randomness.parameters import has_rows, of_parameters
from dream.adapters.pytorch.randomness.rows import Place, Rows, empty_for, spread_for
from dream.adapters.pytorch.update.same_numbers import mark

Own = Callable[..., Any]


def standing_for(kind: DrawKind, name: str, own: Own) -> Own:
    """Return what stands for `own`."""
    return _KINDS[kind](name, own)


def _found(name: str, x: Any) -> Found | None:
    """Find the batch's rows in a tensor that is drawn for; None where it has none."""
    return _found_in(name, x.shape, x) if type(x) is torch.Tensor else None


def _found_in(name: str, shape: Sequence[int], x: Any = None) -> Found | None:
    """Find them in a shape, of a tensor that is made: beside a model's call too."""
    rows = current.rows
    joins.wanted = True
    if rows is not None:
        memory = current.memory
        memory.draws += 1
        found = memory.find(name, shape, rows, x)
        if found is None or has_rows(name, x, found[0].count, memory.drawn_for, memory.draws):
            return found
        return None
    if current.outside is None or of_parameters(x):
        return None
    rows = current.outside(shape, x, name)
    if rows is None:
        return None
    say_once(
        f"torch.{name} in the loop makes as many rows as this rank's share of the batch: it is "
        "drawn for the global batch, and each rank takes its rows"
    )
    return rows, Place(0)


def _alike(own: Own, *args: Any, **kwargs: Any) -> Any:
    """Torch's own, for a tensor of a size that is no share's."""
    made = _alone(own, *args, **kwargs)
    if current.alike is not None and kwargs.get("out") is None:
        current.alike(made)
        if torch.is_grad_enabled():  # tensors of an evaluation may count no versions
            mark(made)
    return made


def _alone(own: Own, *args: Any, **kwargs: Any) -> Any:
    """Torch's own, for a tensor that all ranks draw alike."""
    if torch.compiler.is_compiling() or (current.call is None and not current.watches):
        return own(*args, **kwargs)
    with current.together():
        return own(*args, **kwargs)


def _dropout(name: str, own: Own, draw: Callable[[Any, float, Rows, Place], Any]) -> Own:
    """Dropout. draw: what this rank's input is multiplied by, drawn for the global batch."""

    @wraps(own)
    def wrapped(input: Any, p: float, train: bool) -> Any:
        if not train or torch.compiler.is_compiling():
            return own(input, p, train)
        found = _found(name, input) if 0.0 < p < 1.0 else None
        if found is None:
            return _alone(own, input, p, train)
        with current.together():
            noise = draw(input, p, *found)
        return input.mul_(noise) if name.endswith("_") else input * noise

    return wrapped


def _mask(name: str, own: Own) -> Own:
    """Dropout. A CPU draws and scales what the input is multiplied by; other devices do so in one
    kernel, which is run on ones."""

    def draw(input: Any, p: float, rows: Rows, place: Place) -> Any:
        shape = rows.whole(input.shape, place)
        if input.device.type == "cpu":
            noise = empty_for(input, shape)
            return rows.take(noise.bernoulli_(1.0 - p), place).div_(1.0 - p)
        return rows.take(own(spread_for(input, shape).fill_(1.0), p, True), place)

    return _dropout(name, own, draw)


def _channels(name: str, own: Own) -> Own:
    """Dropout of whole channels: drawn for tensors of one element a channel."""

    def draw(input: Any, p: float, rows: Rows, place: Place) -> Any:
        sizes = [*input.shape[:2], *(1 for _ in input.shape[2:])]
        ones = torch.ones(rows.whole(sizes, place), dtype=input.dtype, device=input.device)
        return rows.take(torch_own("feature_dropout", own)(ones, p, True), place)

    return _dropout(name, own, draw)


def torch_own(name: str, own: Own) -> Own:
    """Return the form of an operation that leaves its input as it is."""
    return own if own.__name__ == name else lambda x, *args: own(x.clone(), *args)


def _rows(name: str, own: Own) -> Own:
    """What works row by row: run on the global batch, of which only this rank's rows are real."""

    @wraps(own)
    def wrapped(input: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or (args and args[-1] is False and "dropout" in name):
            return own(input, *args, **kwargs)
        one_row = name == "multinomial" and input.dim() == 1
        found = None if one_row else _found(name, input)
        if found is None or kwargs.get("out") is not None:
            return _alone(own, input, *args, **kwargs)
        rows, place = found
        whole = torch.full(rows.whole(input.shape, place), 0.5, dtype=input.dtype,
                           device=input.device)  # fmt: skip
        whole = whole.index_copy(place.dim, rows.index(place, input.device), input)
        with current.together():
            given = rows.take(own(whole, *args, **kwargs), place)
        return input.copy_(given) if name.endswith("_") else given

    return wrapped


def _values(name: str, own: Own) -> Own:
    """What draws as many numbers as its values say, as a gamma: for the global batch where they are
    the same in each row. Where they are not, every rank draws for itself, and that is said."""

    @wraps(own)
    def wrapped(input: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return own(input, *args, **kwargs)
        found = _found(name, input)
        if found is None:
            return _alone(own, input, *args, **kwargs)
        rows, place = found
        first = input.narrow(place.dim, 0, 1) if rows.count else input
        if not rows.count or not bool((input == first).all()):
            return own(input, *args, **kwargs)
        sizes = rows.whole(input.shape, place)
        with current.together():
            return rows.take(own(first.expand(sizes).contiguous(), *args, **kwargs), place)

    return wrapped


def _fill(name: str, own: Own) -> Own:
    """What fills a tensor in place."""

    @wraps(own)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or type(self) is not torch.Tensor:
            return _alone(own, self, *args, **kwargs)  # a new layer's parameter
        found = _found_in(name, self.shape, self)
        if found is None:
            return _alike(own, self, *args, **kwargs)
        rows, place = found
        sizes = rows.whole(self.shape, place)
        whole = empty_for(self, sizes)
        if args and isinstance(args[0], torch.Tensor) and args[0].dim():  # bernoulli_(p)
            p = torch.full(sizes, 0.5, dtype=args[0].dtype, device=self.device)
            rows.put(p, args[0].expand(self.shape), place)
            args = (p, *args[1:])
        with current.together():
            own(whole, *args, **kwargs)
        return self.copy_(rows.take(whole, place))

    return wrapped


def _like(name: str, own: Own) -> Own:
    """What makes a tensor as large as another."""

    @wraps(own)
    def wrapped(input: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or type(input) is not torch.Tensor:
            return _alone(own, input, *args, **kwargs)
        found = _found_in(name, input.shape, input)
        if found is None:
            return _alone(own, input, *args, **kwargs)
        rows, place = found
        like = empty_for(input, rows.whole(input.shape, place))
        with current.together():
            return _settled(rows.take(own(like, *args, **kwargs), place), kwargs)

    return wrapped


def _size(name: str, own: Own) -> Own:
    """What makes a tensor of a size: (*size) or (size), after the bounds of randint."""

    @wraps(own)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or (current.call is None and current.outside is None):
            return own(*args, **kwargs)
        bounds, shape = _size_in(name, args, kwargs)
        found = None if shape is None or kwargs.get("out") is not None else _found_in(name, shape)
        if found is None or shape is None:
            return _alike(own, *args, **kwargs)
        rows, place = found
        given = {key: value for key, value in kwargs.items() if key != "size"}
        with current.together():
            whole = own(*bounds, tuple(rows.whole(shape, place)), **given)
        made = _settled(rows.take(whole, place), kwargs)
        if rows.count in bounds:
            own_places.note(made, name)
        return made

    return wrapped


def _size_in(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], list[int] | None]:
    """Return the arguments before the size, and the size; None where there is none to be seen."""
    if "size" in kwargs:
        return args, [*kwargs["size"]]
    if name == "randint":
        sized = next((i for i, x in enumerate(args) if isinstance(x, (tuple, list))), None)
        return (args, None) if sized is None else (args[:sized], [*args[sized]])
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        return (), [*args[0]]
    return (), [*args] if args and all(isinstance(x, int) for x in args) else None


def _settled(x: torch.Tensor, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """The rows that were asked for with a gradient are a leaf, as torch's own are."""
    return x.detach().requires_grad_() if kwargs.get("requires_grad") else x


def _normal(name: str, own: Own) -> Own:
    """torch.normal(mean, std[, size]), where each may be a number or a tensor."""

    @wraps(own)
    def wrapped(mean: Any, std: Any = 1.0, size: Any = None, **kwargs: Any) -> Any:
        args = (mean, std) if size is None else (mean, std, size)
        if torch.compiler.is_compiling() or (current.call is None and current.outside is None):
            return own(*args, **kwargs)
        tensors = [x for x in (mean, std) if isinstance(x, torch.Tensor)]
        shape = size if size is not None else torch.broadcast_shapes(*(x.shape for x in tensors))
        found = None if kwargs.get("out") is not None else _found_in(name, shape, *tensors[:1])
        if found is None:
            return (_alone if tensors else _alike)(own, *args, **kwargs)
        rows, place = found
        sizes = rows.whole(shape, place)
        if size is not None:
            with current.together():
                return _settled(rows.take(own(mean, std, sizes, **kwargs), place), kwargs)
        given = [_spread(x, shape, sizes, rows, place) for x in (mean, std)]
        with current.together():
            return rows.take(own(*given, **kwargs), place)

    return wrapped


def _spread(x: Any, shape: Any, sizes: list[int], rows: Rows, place: Place) -> Any:
    """A number, or a tensor of the global batch that has this rank's rows."""
    if not isinstance(x, torch.Tensor) or not x.dim():
        return x
    whole = torch.ones(sizes, dtype=x.dtype, device=x.device)
    rows.put(whole, x.expand(shape), place)
    return whole


def _attention(name: str, own: Own) -> Own:
    """Attention with dropout, which the CPU computes step by step; other devices have a kernel of
    their own numbers."""

    @wraps(own)
    def wrapped(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, **kwargs: Any,
    ) -> Any:  # fmt: skip
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        if dropout_p <= 0.0 or torch.compiler.is_compiling():
            return own(*given, **kwargs)
        if query.device.type != "cpu":
            return own(*given, **kwargs)
        found = _found(name, query)
        if found is None:
            return _alone(own, *given, **kwargs)
        if kwargs.get("enable_gqa"):
            groups = query.shape[-3] // key.shape[-3]
            key = key.repeat_interleave(groups, -3)
            value = value.repeat_interleave(groups, -3)
        scale = kwargs.get("scale") or query.shape[-1] ** -0.5
        weights = (query @ key.transpose(-2, -1)) * scale
        if is_causal:
            attn_mask = torch.ones(weights.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                weights = weights.masked_fill(attn_mask.logical_not(), float("-inf"))
            else:
                weights = weights + attn_mask
        return torch.dropout(weights.softmax(-1), dropout_p, True) @ value

    return wrapped


def _pick(name: str, own: Own) -> Own:
    """A permutation of the batch, which mixes samples that other ranks have: the order that the
    global one gives this rank's own."""

    @wraps(own)
    def wrapped(n: Any, *args: Any, **kwargs: Any) -> Any:
        if (current.call is None and current.outside is None) or torch.compiler.is_compiling():
            return own(n, *args, **kwargs)
        rows = current.rows or (current.outside((n, 1), None, name) if current.outside else None)
        if rows is None or n != rows.count:
            return _alike(own, n, *args, **kwargs)
        say_once(
            "torch.randperm in the loop permutes a batch: each rank permutes its own share, so "
            "samples are mixed with others than on one device. Mix them in the collate function, "
            "which sees the global batch, to keep them"
        )
        with current.together():
            whole = own(rows.total, *args, **kwargs)
        return rows.take(whole, Place(0)).argsort()

    return wrapped


def _seed(name: str, own: Own) -> Own:
    """What sets torch's generators. name: for its kind."""
    del name

    @wraps(own)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        found = own(*args, **kwargs)
        current.pardon()
        return found

    return wrapped


def _again(name: str, own: Own) -> Own:
    """What computes again in backward, on a GPU in a thread of torch's. name: for its kind."""
    del name

    @wraps(own)
    def wrapped(function: Own, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return own(function, *args, **kwargs)
        return own(in_this_context(function), *args, **kwargs)

    return wrapped


_KINDS: Mapping[DrawKind, Callable[[str, Own], Own]] = {
    "mask": _mask,
    "channels": _channels,
    "rows": _rows,
    "values": _values,
    "fill": _fill,
    "like": _like,
    "size": _size,
    "normal": _normal,
    "attention": _attention,
    "pick": _pick,
    "seed": _seed,
    "join": joining,
    "repeat": repeating,
    "again": _again,
}
