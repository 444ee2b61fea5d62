"""A model's own forward pass as a graph whose nodes are whole layers.

torch.fx follows the forward with stand-ins for tensors. Layers are taken whole, so only the lines
between them must be followed; what those lines read besides tensors (flags, numbers) is part of
the graph's key, and a graph is made again where it has changed.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, final

import numpy as np
import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch.parallel.split.inside import inside

_PLAIN = (bool, int, float, str, type(None))
_UNSEEN = (
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)

_following = Lock()  # torch.fx takes every module's calls meanwhile


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a forward pass by parameter name, defaults among them.

    tensors: those that hold tensors; constants: the others, which the graph is made for.
    """

    tensors: Mapping[str, Any]
    constants: Mapping[str, Any]

    @property
    def key(self) -> object:
        """What a graph is made for."""
        return tuple(self.tensors), repr(dict(self.constants))


def call_of(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """How a model is called."""
    try:
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigurationError(
            f"{type(model).__name__} does not take these inputs. Received: {len(args)} positional, "
            f"{sorted(kwargs)} by name: {error}. A batch is the model's inputs and then the target."
        ) from error
    bound.apply_defaults()
    parameters = bound.signature.parameters
    tensors: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if parameters[name].kind in _UNSEEN:
            if value:
                raise _unfollowed(model, f"*{name} in its forward's signature")
        elif any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value)):
            tensors[name] = value
        else:
            constants[name] = value
    return Call(tensors, constants)


def likely_call(model: nn.Module) -> Call:
    """How a model will be called, as far as its signature tells: required parameters are tensors,
    the others keep their defaults."""
    tensors: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for name, parameter in inspect.signature(model.forward).parameters.items():
        if parameter.kind in _UNSEEN:
            continue
        if parameter.default is inspect.Parameter.empty:
            tensors[name] = None
        else:
            constants[name] = parameter.default
    return Call(tensors, constants)


@final
class Layers(fx.Tracer):
    """Follows forwards. opened: the names of modules that are followed inside; nn.Sequential is
    opened always."""

    def __init__(self, opened: frozenset[str]) -> None:
        super().__init__()
        self.opened = opened

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m).forward is not nn.Sequential.forward and (
            module_qualified_name not in self.opened
        )


def looked_into(model: nn.Module, opened: Collection[str]) -> set[str]:
    """The names of the modules that are followed inside, or never called, as lists are."""
    found = {""}
    for name, module in model.named_modules():
        follows = type(module).forward in (nn.Sequential.forward, nn.Module.forward)
        if (follows or name in opened) and name.rpartition(".")[0] in found:
            found.add(name)
    return found


def trace(model: nn.Module, call: Call, opened: frozenset[str]) -> fx.Graph:
    """The graph of a call. `Unsupported` where the forward cannot be followed."""
    if model._forward_hooks or model._forward_pre_hooks:
        raise _unfollowed(model, "forward hooks on the model itself")
    try:
        with _following, inside(), _no_random_draw(model):
            graph = Layers(opened).trace(model, dict(call.constants) or None)
    except Unsupported:
        raise
    except Exception as error:
        raise _unfollowed(model, f"{type(error).__name__}: {error}") from error
    _drop_constants(graph, call)
    return graph


def _drop_constants(graph: fx.Graph, call: Call) -> None:
    """What checks that constants are those the graph was made for: the key does that."""
    doomed = [n for n in graph.find_nodes(op="placeholder") if n.target not in call.tensors]
    for node in doomed:
        doomed += [user for user in node.users if user not in doomed]
    for node in reversed([node for node in graph.nodes if node in set(doomed)]):
        graph.erase_node(node)


def state_key(model: nn.Module, opened: frozenset[str]) -> object:
    """What the followed lines may have read: plain attributes of the modules that are followed."""
    modules = [model, *(model.get_submodule(name) for name in sorted(opened))]
    return tuple(
        tuple((name, value) for name, value in vars(module).items() if isinstance(value, _PLAIN))
        for module in modules
    )


@contextmanager
def _no_random_draw(model: nn.Module) -> Iterator[None]:
    """A number drawn while the forward is followed would be the same for ever."""
    before = _generators()
    yield
    if _generators() != before:
        raise _unfollowed(model, "random numbers drawn outside its layers")


def _generators() -> object:
    states = np.random.get_state(legacy=False)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), repr(states)


def _unfollowed(model: nn.Module, received: str) -> Unsupported:
    return Unsupported(
        f"The forward of {type(model).__name__} cannot be followed from layer to layer. Received: "
        f"{received}. Put what depends on values, or draws random numbers, into a layer of its own "
        "(layers are taken whole), or use mirrored or sharded."
    )
