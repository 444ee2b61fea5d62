"""A model's forward pass as a graph whose nodes are whole layers, and the graph cut into stages.

torch.fx follows the forward with stand-ins for tensors. Layers are taken whole, so only the lines
between them must be followed; what those read besides tensors (flags, numbers) is part of the
graph's key, and a graph is made again where it has changed.
"""

from __future__ import annotations

import inspect
import operator
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import cached_property, wraps
from threading import Lock
from typing import Any, final

import numpy as np
import torch
from torch import fx, nn

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch import hooks
from dream.adapters.pytorch.parallel.inner_calls import running_layers
from dream.adapters.pytorch.parallel.snapshot import Reach
from dream.adapters.pytorch.private import has_hooks, tree_leaves

_PLAIN = (bool, int, float, str, type(None))
_UNSEEN = (
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)

_following = Lock()  # torch.fx takes every module's calls meanwhile


@dataclass(frozen=True, slots=True)
class ForwardCall:
    """The arguments of a forward pass by parameter name, defaults among them.

    tensors: those that hold tensors; constants: the others, which the graph is made for.
    """

    tensors: Mapping[str, Any]
    constants: Mapping[str, Any]

    @property
    def key(self) -> object:
        """Return what a graph is made for."""
        return tuple(self.tensors), repr(dict(self.constants))


def call_of(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ForwardCall:
    """Bind a call's arguments to a model's parameters."""
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
    return ForwardCall(tensors, constants)


def likely_call(model: nn.Module) -> ForwardCall:
    """Guess a call from the signature: required parameters are tensors, the others keep their
    defaults."""
    tensors: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for name, parameter in inspect.signature(model.forward).parameters.items():
        if parameter.kind in _UNSEEN:
            continue
        if parameter.default is inspect.Parameter.empty:
            tensors[name] = None
        else:
            constants[name] = parameter.default
    return ForwardCall(tensors, constants)


def parents_of(names: Collection[str]) -> frozenset[str]:
    """Return the names of the modules that hold others by their dotted names, but the model's."""
    split = (name.split(".") for name in names)
    return frozenset(".".join(parts[:length]) for parts in split for length in range(1, len(parts)))


@final
class LayerTracer(fx.Tracer):
    """Follows forwards. opened: the names of modules that are followed inside; nn.Sequential is
    opened always."""

    def __init__(self, opened: frozenset[str]) -> None:
        super().__init__()
        self.opened = opened
        self._modes = _modes()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _modes() != self._modes:
            raise fx.proxy.TraceError("torch.no_grad or autocast around some of its operations")
        return super().create_node(*args, **kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m).forward is not nn.Sequential.forward and (
            module_qualified_name not in self.opened
        )


def _modes() -> tuple[bool, ...]:
    """What a block sets for the operations inside, which a graph does not tell."""
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
    )


def traced_modules(model: nn.Module, opened: Collection[str]) -> set[str]:
    """Return the names of the modules that are followed inside, or never called, as lists are."""
    found = {""}
    for name, module in model.named_modules():
        follows = type(module).forward in (nn.Sequential.forward, nn.Module.forward)
        if (follows or name in opened) and name.rpartition(".")[0] in found:
            found.add(name)
    return found


def trace(model: nn.Module, call: ForwardCall, opened: frozenset[str]) -> fx.Graph:
    """Return the graph of a call. `Unsupported` where the forward cannot be followed: what else it
    does than to compute would be done once, and not in each call."""
    if has_hooks(model):
        raise _unfollowed(model, "hooks on the model itself")
    before = Reach(model).before()
    try:
        with _following, running_layers(), _no_random_draw(model), hooks.functions(_noting):
            graph = LayerTracer(opened).trace(model, dict(call.constants) or None)
        if does := before.kept() or before.changed():
            raise _unfollowed(model, f"a forward that {does}")
    except Unsupported:
        raise
    except Exception as error:
        raise _unfollowed(model, f"{type(error).__name__}: {error}") from error
    finally:
        before.take_back()
    _drop_constants(graph, call)
    return graph


def _noting(own: Callable[..., Any]) -> Callable[..., Any]:
    """Have a function with a backward of its own noted as it is."""

    @wraps(own)
    def apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        for given in tree_leaves((args, kwargs)):
            if isinstance(given, fx.Proxy):
                return given.tracer.create_proxy("call_function", function.apply, args, kwargs)
        return own(function, *args, **kwargs)

    return apply


def _drop_constants(graph: fx.Graph, call: ForwardCall) -> None:
    """Drop the checks that constants are those the graph was made for: the key does that."""
    doomed = [n for n in graph.find_nodes(op="placeholder") if n.target not in call.tensors]
    for node in doomed:
        doomed += [user for user in node.users if user not in doomed]
    for node in reversed([node for node in graph.nodes if node in set(doomed)]):
        graph.erase_node(node)


def state_key(model: nn.Module, opened: frozenset[str]) -> object:
    """Return what the followed lines may have read: plain attributes of the modules that are
    followed, and what modules there are."""
    modules = [model, *(model.get_submodule(name) for name in sorted(opened))]
    plain = tuple(
        tuple((name, value) for name, value in vars(module).items() if isinstance(value, _PLAIN))
        for module in modules
    )
    return plain, tuple(name for name, _ in model.named_modules())


@contextmanager
def _no_random_draw(model: nn.Module) -> Iterator[None]:
    """Return a number drawn while the forward is followed would be the same for ever."""
    before = generator_states()
    yield
    if generator_states() != before:
        raise _unfollowed(model, "random numbers drawn outside its layers")


def generator_states() -> object:
    states = np.random.get_state(legacy=False)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), repr(states)


def _unfollowed(model: nn.Module, received: str) -> Unsupported:
    return Unsupported(
        f"The forward of {type(model).__name__} cannot be followed from layer to layer. Received: "
        f"{received}. Put what depends on values, or draws random numbers, into a layer of its own "
        "(layers are taken whole), or use mirrored or sharded."
    )


_NUMBERS = (
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.pow,
    operator.getitem, len,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerSpan:
    """A layer in a forward, with the lines that follow it up to the next one.

    index: of its first call among the graph's nodes. state: names of the parameters and buffers
    that are read from here on until the next layer.
    """

    name: str
    index: int
    state: frozenset[str]


@final
class LayerSequence:
    """A traced forward as a row of layers."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        self._model = model
        self.nodes = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr")]
        self.placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self.layers = [*_layers(model, self.nodes)]

    @cached_property
    def tied(self) -> dict[str, tuple[int, int]]:
        """Find what several layers of the row share: name -> first and last."""
        found: dict[str, tuple[int, int]] = {}
        for position, layer in enumerate(self.layers):
            for name in layer.state:
                found[name] = found.get(name, (position, position))[0], position
        return {name: ends for name, ends in found.items() if ends[0] != ends[1]}

    @property
    def cuts(self) -> list[int]:
        """Return the positions in the row at which a stage may begin."""
        forbidden = {at for first, last in self.tied.values() for at in range(first + 1, last + 1)}
        return [at for at in range(1, len(self.layers)) if at not in forbidden]

    def stage_graphs(self, starts: Sequence[int]) -> list[StageCode]:
        """Return the graphs of the stages. starts: the layers that the later stages begin with, as
        positions in the row."""
        begins = [self.layers[at].index for at in starts]
        stages: list[list[fx.Node]] = [[] for _ in range(len(starts) + 1)]
        for index, node in enumerate(self.nodes):
            stages[sum(begin <= index for begin in begins)].append(node)
        return [self._stage_graph(stages, index) for index in range(len(stages))]

    def _stage_graph(self, stages: list[list[fx.Node]], index: int) -> StageCode:
        live = [self._live(stages, index + side) for side in (0, 1)]
        return StageCode(self._model, self.placeholders, live[0], stages[index], live[1])

    def _live(self, stages: list[list[fx.Node]], index: int) -> list[fx.Node]:
        """Return what passes from the stages before `index` to those from it on, in order."""
        needed = {
            source
            for stage in stages[index:]
            for node in stage
            for source in sources(node)
            if source.op != "placeholder"
        }
        before = (node for stage in stages[:index] for node in stage)
        return [node for node in before if node in needed]


def sources(node: fx.Node) -> Iterator[fx.Node]:
    """Return the tensors that a node is computed from: not numbers and records, which are made
    again wherever they are needed, nor parameters."""
    for source in node.all_input_nodes:
        if is_number(source) or is_record(source):
            yield from sources(source)
        elif source.op != "get_attr":
            yield source


def is_number(node: fx.Node) -> bool:
    """Tell whether a node is a size, or arithmetic on sizes."""
    if node.op == "call_method":
        return node.target in ("size", "dim", "numel")
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] in ("shape", "ndim", "device", "dtype")
    inputs = node.all_input_nodes
    return node.target in _NUMBERS and bool(inputs) and all(map(is_number, inputs))


def is_record(node: fx.Node) -> bool:
    """Tell whether a node puts what others give into a dataclass."""
    return isinstance(node.target, type) and is_dataclass(node.target)


def _layers(model: nn.Module, nodes: list[fx.Node]) -> Iterator[LayerSpan]:
    """Return what comes before the first layer is counted to it."""
    begun: list[tuple[str, int, set[str]]] = []
    called: set[str] = set()
    early: set[str] = set()
    for index, node in enumerate(nodes):
        if node.op == "call_module" and node.target not in called:
            called.add(str(node.target))
            begun.append((str(node.target), index if begun else 0, set() if begun else early))
        (begun[-1][2] if begun else early).update(_read(model, node))
    for name, index, state in begun:
        yield LayerSpan(name, index, frozenset(state))


def _read(model: nn.Module, node: fx.Node) -> Iterator[str]:
    """Return the names of a node's layer or of what it reads, one name for what is one object."""
    if node.op == "call_module":
        layer = model.get_submodule(str(node.target))
        yield str(node.target)
        names = {id(value): name for name, value in model.named_parameters()}
        for parameter in layer.parameters():
            yield names[id(parameter)]
    for source in node.all_input_nodes:
        if source.op == "get_attr" and isinstance(_attribute(model, source), nn.Parameter):
            names = {id(value): name for name, value in model.named_parameters()}
            yield names[id(_attribute(model, source))]
        elif is_number(source):
            yield from _read(model, source)


def _attribute(model: nn.Module, node: fx.Node) -> object:
    return operator.attrgetter(str(node.target))(model)


@final
class StageCode:
    """The code of one stage: a graph from the model's inputs and what came from the stage before,
    to what the next one needs; of the last stage, to the model's output."""

    def __init__(
        self,
        model: nn.Module,
        placeholders: Sequence[fx.Node],
        received: list[fx.Node],
        nodes: list[fx.Node],
        sent: list[fx.Node],
    ) -> None:
        self._model, self._graph = model, fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        for node in (*placeholders, *received):
            self._copies[node] = self._graph.placeholder(node.name)
        for node in received:
            if any(writes(model, user) for user in node.users if user in nodes):
                self._copies[node] = self._graph.call_method("clone", (self._copies[node],))
        for node in nodes:
            if not is_number(node):
                self._copy(node)
        if not nodes or nodes[-1].op != "output":
            passed = [self._graph.call_method("contiguous", (self._copies[n],)) for n in sent]
            self._graph.output(tuple(passed))

    def module(self) -> fx.GraphModule:
        """Return the stage, holding the model's own layers: the graph's call of one is a call of
        it."""
        return fx.GraphModule(self._model, self._graph)

    def _copy(self, node: fx.Node) -> fx.Node:
        if node not in self._copies:
            for source in node.all_input_nodes:
                if is_number(source) or source.op == "get_attr":
                    self._copy(source)
            self._copies[node] = self._graph.node_copy(node, self._copies.__getitem__)
        return self._copies[node]


def writes(model: nn.Module, node: fx.Node) -> bool:
    """Tell whether a node may write into its input, which what is received must not bear."""
    if node.op == "call_module":
        return bool(getattr(model.get_submodule(str(node.target)), "inplace", False))
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return str(name).endswith("_") or node.kwargs.get("inplace") is True
