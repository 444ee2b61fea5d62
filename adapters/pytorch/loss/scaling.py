"""How the gradients that the terms of a loss start from are multiplied, and what its value adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from dream.adapters.pytorch import devices
from dream.adapters.pytorch.loss.calls import Bearer, call_at
from dream.adapters.pytorch.loss.factors import Factor, Weighed
from dream.adapters.pytorch.loss.graph_search import FAR
from dream.adapters.pytorch.loss.terms import COUNTED, Term
from dream.adapters.pytorch.private import foreach_mul_, note, to_local, to_whole


def scaled(
    root: torch.Tensor, given: torch.Tensor | None, terms: list[Term], factors: list[Factor]
) -> tuple[torch.Tensor | None, list[Any]]:
    """The gradient that a root starts from, and hooks where its terms need one each."""
    first = factors[0]
    if all(each is first or (isinstance(each, float) and each == first) for each in factors):
        if isinstance(first, float) and first == 1.0:
            return given, []
        if given is None:
            return _full(root, first), []
        return _multiplied(given, first), []
    hooks, known = [], set()
    for term, factor in zip(terms, factors, strict=True):
        if (isinstance(factor, float) and factor == 1.0) or (term.node, term.place) in known:
            continue
        known.add((term.node, term.place))
        hooks.append(term.node.register_prehook(_times(factor, term.place)))
    return given, hooks


def starts_of(
    roots: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor | None],
    terms: Sequence[list[Term]],
    weighed: Weighed,
) -> tuple[list[Any], list[Any], Factor]:
    """The gradients that roots start from, hooks, and what the loss adds to the global one's value
    if it is the only root. gradients: those that are given. terms: of each root."""
    starts, hooks, at = [], stops(weighed), 0
    value: Factor = 0.0
    for root, given, each in zip(roots, gradients, terms, strict=True):
        own = weighed.factors[at : at + len(each)]
        at += len(each)
        start, more = scaled(root, given, each, own)
        starts.append(start)
        hooks += more
        value = value_of(root, each, own) if len(roots) == 1 else 0.0
    return starts, hooks, value


def count_by_hand(loss: torch.Tensor, count: float) -> torch.Tensor:
    """Return `loss`, which the user says is a mean over `count` things here."""
    weighed = loss * 1.0
    if weighed.grad_fn is not None:
        note(weighed.grad_fn, COUNTED, count)
    return weighed


def agree(weighed: Weighed) -> None:
    """Have the terms of one product with what parameters give, whose gradient is multiplied as a
    whole, count alike; where they do not, as means over samples, which is said."""
    products: dict[Any, list[int]] = {}
    for index, term in enumerate(weighed.terms):
        if not term.plain:
            products.setdefault((term.node, term.place), []).append(index)
    for together in products.values():
        first = weighed.factors[together[0]]
        if all(_same(weighed.factors[index], first) for index in together):
            continue
        for index in together:
            term = weighed.terms[index]
            term.unknown = "MulBackward0"
            weighed.factors[index] = 1.0 if term.share is None else term.share.weight


def _full(root: torch.Tensor, factor: Factor) -> torch.Tensor:
    if isinstance(factor, torch.Tensor):
        return factor.to(root.dtype).reshape(root.shape)
    return torch.full_like(root, factor, requires_grad=False)


def _times(factor: Factor, place: int | None) -> Callable[[Any], Any]:
    def hook(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            None if g is None else _multiplied(g, _at(g, factor, place)) for g in gradients
        )

    return hook


def _multiplied(gradient: torch.Tensor, factor: Factor) -> torch.Tensor:
    """A loss's gradient of one element would take the dtype of a count that lies beside it."""
    return (gradient * factor).to(gradient.dtype)


def _at(gradient: torch.Tensor, factor: Factor, place: int | None) -> Factor:
    """A factor, of one element alone where there is a place."""
    if place is None:
        return factor
    factors = torch.ones_like(gradient)
    factors.view(-1)[place] = factor
    return factors


def stops(weighed: Weighed) -> list[Any]:
    """Nothing times what is not finite is nothing: hooks where that could come from. What is not
    finite of something stays so: a GradScaler looks for it."""
    handles = []
    for term, factor in zip(weighed.terms, weighed.factors, strict=True):
        if isinstance(factor, torch.Tensor) or factor == 0.0:
            of_none = term.divided is not None and term.divided.of_none
            nodes = term.zeroed if term.kind == "count" or of_none else []
            handles += [node.register_prehook(partial(_finite, factor)) for node in nodes]
            if not term.plain:
                handles += [node.register_hook(_nothing_stays) for node in _product_of(term)]
                bearers = [call.bearer for call in term.calls if call.bearer is not None]
                parameters = {p: None for bearer in bearers for p in bearer.trained}
                handles += [p.register_hook(partial(_finite_one, factor)) for p in parameters]
    return handles


def _product_of(term: Term) -> list[Any]:
    """The nodes of a product with what parameters give, down to the outputs it is computed from."""
    found: dict[Any, None] = {}
    waiting = [term.node]
    while waiting and len(found) < FAR:
        node = waiting.pop()
        if node is not None and node not in found and call_at(node) is None:
            found[node] = None
            waiting += [each for each, _ in node.next_functions]
    return [node for node in found if node.next_functions]


def _nothing_stays(given: tuple[Any, ...], start: tuple[Any, ...]) -> tuple[Any, ...]:
    """A gradient of 0 times a mean over no sample is 0, before others are added to it."""
    only = start[0] if len(start) == 1 else None
    none = not any(g is not None and g.count_nonzero() for g in start)

    def stays(g: torch.Tensor) -> torch.Tensor:
        if none:
            return torch.zeros_like(g)
        if only is None or only.shape != g.shape:
            return g
        return torch.where((only == 0) & g.isnan(), torch.zeros_like(g), g)

    return tuple(None if g is None else stays(g) for g in given)


def _finite_one(factor: Factor, gradient: torch.Tensor) -> torch.Tensor:
    finite = gradient.nan_to_num(nan=0.0)
    if isinstance(factor, torch.Tensor):
        return torch.where(factor == 0, finite, gradient)
    return finite


def _finite(factor: Factor, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if g is None else _finite_one(factor, g) for g in gradients)


def in_parts(weighed: Weighed) -> bool:
    """Whether the global loss does not follow from the ranks' own: parts have different factors,
    and what is alike everywhere is not counted once in their mean."""
    if len(weighed.terms) == 1:
        return False
    kinds = {term.kind for term in weighed.terms}
    data = [f for t, f in zip(weighed.terms, weighed.factors, strict=True) if t.kind != "once"]
    if "sum" in kinds and "once" in kinds:
        return True
    first = data[0] if data else 1.0
    return any(each is not first and not _close(each, first) for each in data)


def _same(one: Factor, other: Factor) -> bool:
    return one is other or _close(one, other)


def _close(one: Factor, other: Factor) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return False
    return abs(one - other) <= 1e-12 * abs(other)


def value_of(root: torch.Tensor, terms: list[Term], factors: list[Factor]) -> Factor:
    """What a rank's loss adds to the mean that is the global one."""
    if root.numel() != 1:
        return 0.0
    data = [f for t, f in zip(terms, factors, strict=True) if t.kind != "once"]
    factor = data[0] if data else 1.0
    whole = to_whole(root.detach())
    own: Any = whole.reshape(()) if devices.is_away(whole) else whole.item()
    if isinstance(factor, torch.Tensor):
        return torch.where(factor == 0, torch.zeros_like(own), own * factor)
    value: Factor = own * factor if factor else 0.0
    return value


def begun(bearer: Bearer) -> bool:
    """Whether there are gradients that this backward adds to."""
    for parameter in bearer.trained:  # noqa: SIM110
        if parameter.grad is not None:
            return True
    return False


def multiply(parameters: Iterable[torch.Tensor], factor: Factor) -> None:
    """What backward left in all of their gradients."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = to_local(parameter.grad)
            by_device.setdefault(gradient.device, []).append(gradient)
    with torch.no_grad():
        for device, gradients in by_device.items():  # those of shards may lie on the host
            there = factor.to(device) if isinstance(factor, torch.Tensor) else factor
            foreach_mul_(gradients, there)
