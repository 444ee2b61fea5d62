"""What each rank of a job does and finds. Every rank runs every case, in this order."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import random
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from local_shard_cases import pieces
from sharding_models import (
    CLASSES,
    WIDTH,
    Reader,
    Tower,
    adamw,
    alone,
    apart,
    heard,
    held,
    momentum,
    refused,
    sentences,
    split,
    train,
)
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream
from dream.adapters.pytorch.private import innermost_mode

Figures = dict[str, Any]


def strategy(name: str, **options: Any) -> dream.Strategy:
    return dream.strategy(name, framework="torch", **options)


def memory(ranks: int, zero: int, data: int) -> Figures:
    """Bytes of this rank after a step, beside those of one device."""
    shares = {"zero": zero, "data": data}
    with strategy("sharded", **shares):
        torch.manual_seed(0)
        model = Tower()
        whole = held(model.parameters())
        optimizer = torch.optim.AdamW(model.parameters())
        x, y = torch.ones(2 * ranks, 256), torch.arange(2 * ranks) % CLASSES
        for a, b in DataLoader(TensorDataset(x, y), batch_size=2 * ranks):
            F.cross_entropy(model(a), b).backward()
            optimizer.step()
        gradients = [p.grad for p in model.parameters()]
        between = _between(model, x)
    states = [v for entry in optimizer.state.values() for v in entry.values()]
    return {
        "whole": whole,
        "parameters": held(model.parameters()),
        "gradients": held(gradients),
        "state": held(states),
        "between": between,
    }


def _between(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes of parameters between forward and backward."""
    loss = model(x).sum()
    found = held(model.parameters())
    loss.backward()
    return found


def exact(ranks: int) -> Figures:
    """A transformer by hand, 4 steps of each optimizer, under each way to split it. How heads are
    written is nothing to shards, nor to an optimizer: on 2 ranks they are given one way."""
    found: Figures = {}
    sharded: list[dict[str, Any]] = (
        [{"zero": 1}, {"zero": 3}] if ranks == 2 else [{"zero": 2}, {"zero": 3}, {"data": 2}]
    )
    tensor = ("model_parallel", _TENSOR) if ranks == 2 else ("hybrid", _TENSOR | {"data": 2})
    for way in ("literal", "attribute", "mask"):
        make_model = partial(Reader, way)
        asked = sharded if ranks > 2 or way == "literal" else []
        of_shards = [("sharded", options) for options in asked]
        for make in (momentum, adamw) if asked else (momentum,):
            one = alone(make_model, make)
            for name, options in (*of_shards, tensor):
                ours = split(make_model, make, name, **options)
                found[f"{name}{options} {way} {make.__name__}"] = apart(ours, one)
    return found


def clipped(ranks: int) -> Figures:
    """By the option, and by torch's functions in the loop; the norm that they give back."""
    one: Figures = {}
    for kind, clip in (("norm", _by_norm), ("most", _by_most), ("value", _by_value)):
        torch.manual_seed(0)
        model = Reader()
        norms: list[float] = []
        train(model, momentum(model.parameters()), between=partial(clip, model, norms))
        one[kind] = norms, {n: v.detach().numpy().copy() for n, v in model.state_dict().items()}
    meshes: list[tuple[str, dict[str, Any]]] = (
        [("sharded", {"zero": 3}), ("model_parallel", _TENSOR)]
        if ranks == 2
        else [("sharded", {"data": 2}), ("hybrid", _TENSOR | {"data": 2}), ("sharded", {"zero": 1})]
    )
    found: Figures = {}
    if ranks == 2:
        found["zero=1 norm"] = _clipped("sharded", {"zero": 1}, _by_norm, one["norm"])
    for name, options in meshes:
        for kind, clip in (("norm", _by_norm), ("most", _by_most), ("value", _by_value)):
            found[f"{name}{options} {kind}"] = _clipped(name, options, clip, one[kind])
        found[f"{name}{options} option"] = _clipped_by_option(name, options, one["norm"][1])
    return found


_TENSOR: dict[str, Any] = {"split": "tensor"}
_MOST = 0.1


def _by_norm(model: nn.Module, norms: list[float]) -> None:
    norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), _MOST)))


def _by_most(model: nn.Module, norms: list[float]) -> None:
    norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.02, float("inf"))))


def _by_value(model: nn.Module, _: list[float]) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 0.01)


def _clipped(name: str, options: dict[str, Any], clip: Any, one: Any) -> Figures:
    norms: list[float] = []
    with strategy(name, **options) as made:
        torch.manual_seed(0)
        model = Reader()
        train(model, momentum(model.parameters()), between=lambda: clip(model, norms))
        ours = made.full_state(model)
    return {"norms": norms, "right": one[0], "apart": apart(ours, one[1])}


def _clipped_by_option(name: str, options: dict[str, Any], one: Any) -> Figures:
    with strategy(name, **options, clip_norm=_MOST) as made:
        torch.manual_seed(0)
        model = Reader()
        train(model, momentum(model.parameters()))
        ours = made.full_state(model)
    return {"norms": [], "right": [], "apart": apart(ours, one)}


def on_meta(_: int) -> Figures:
    """First values, and the most memory that a rank took while it got them."""
    found: Figures = {}
    for name, options in (("sharded", {}), ("sharded", {"zero": 2}), ("model_parallel", _TENSOR)):
        with strategy(name, **options) as made:
            _on_meta(made, Tower(8, 1))  # whatever is imported on the way is imported now
            torch.manual_seed(7)
            with torch.device("meta"):
                model = _Deep()
            with _Largest() as largest:
                momentum(model.parameters())
            ours = made.full_state(model)
            train_once = refused(
                lambda model=model: F.cross_entropy(
                    model(torch.ones(4, 64)), torch.zeros(4, dtype=torch.long)
                ).backward()
            )
        torch.manual_seed(7)
        plain = _Deep()
        one = {n: v.detach().numpy() for n, v in plain.state_dict().items()}
        found[f"{name}{options}"] = {
            "apart": apart(ours, one),
            "whole": held(plain.parameters()),
            "largest": largest.bytes,
            "own": held(model.parameters()),
            "after": train_once,
        }
    return found


def _on_meta(made: Any, model: nn.Module) -> None:
    made.prepare(model)


class _Deep(nn.Module):
    """Eight pairs of layers, and a normalisation with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.Sequential(
            *(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)) for _ in range(8))
        )
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.pairs(x)))


class _Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """The most bytes of tensors alive at once, of those made while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._alive: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                self._note(tensor)
        self.bytes = max(self.bytes, sum(size for _, size in self._alive.values()))
        return result

    def _note(self, tensor: torch.Tensor) -> None:
        from weakref import finalize

        if type(tensor) is not torch.Tensor:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._alive:
            self._alive[key] = None, storage.nbytes()
            finalize(storage, self._alive.pop, key, None)


_WHOLE, _HALVED = ("sharded", {"zero": 3}), ("sharded", {"zero": 2})
_OPTIMIZERS: tuple[str, dict[str, Any]] = ("sharded", {"zero": 1})
_CUT: tuple[str, dict[str, Any]] = ("model_parallel", {"split": "tensor"})


def _ways(ranks: int, *further: tuple[str, dict[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """On 2 ranks those that have least in common, on 4 the others."""
    return further if ranks > 2 else (_WHOLE, _CUT)


def copies(ranks: int) -> Figures:
    """A moving average, and a copy that is called and trained by itself."""
    found: Figures = {}
    torch.manual_seed(0)
    one = Reader()
    kept = _averaged(one, momentum(one.parameters()))
    right = kept(sentences()[:16][0]).detach().numpy()
    for name, options in _ways(ranks, _HALVED):
        with strategy(name, **options) as made:
            torch.manual_seed(0)
            model = Reader()
            average = _averaged(model, momentum(model.parameters()))
            with torch.no_grad():
                ours = average(sentences()[:16][0]).numpy()
            state = apart(made.full_state(average), _state(kept))
            best = made.full_state(model)
            before = copy.deepcopy(model.state_dict())
            train(model, momentum(model.parameters()), epochs=1)
            model.load_state_dict(before)
            back = apart(made.full_state(model), best)
        found[f"{name}{options}"] = {
            "output": float(np.abs(ours - right).max()), "state": state, "back": back,
            "pickled": refused(lambda model=model: pickle.dumps(model)),
            "kind": type(average).__name__,
        }  # fmt: skip
    return found


def _averaged(model: nn.Module, optimizer: Any) -> nn.Module:
    train(model, optimizer, epochs=1)
    average = copy.deepcopy(model)
    train(model, optimizer, epochs=1)
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(new, 0.5)
    return average


def _state(model: nn.Module) -> Figures:
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def saved(_: int) -> Figures:
    """torch.save of parts, in the block and after it, and of whole arrays."""
    found: Figures = {}
    ways = (("sharded", {}), ("sharded", {"zero": 1}), ("model_parallel", _TENSOR),
            ("model_parallel", {"split": "pipeline"}))  # fmt: skip
    for name, options in ways:
        with strategy(name, **options) as made:
            model = Tower(8, 2)
            optimizer = adamw(model.parameters())
            made.prepare(model, optimizer)
            made.train_step(model, F.cross_entropy, optimizer)(
                torch.ones(8, 8), torch.arange(8) % CLASSES
            )
            inside = _saves(made, model, optimizer)
        found[f"{name}{options}"] = {"inside": inside, "after": _saves(made, model, optimizer)}
    return found


def _saves(made: Any, model: nn.Module, optimizer: Any) -> Figures:
    def said(what: Any) -> str:
        return refused(lambda: torch.save(what, io.BytesIO()))

    copied = copy.deepcopy(model.state_dict())
    model.load_state_dict(copied)
    return {
        "model": said(model.state_dict()), "nested": said({"model": [model.state_dict()]}),
        "state": said(optimizer.state_dict()), "module": said(model),
        "whole": said({n: torch.from_numpy(v) for n, v in made.full_state(model).items()}),
    }  # fmt: skip


def prepared(_: int) -> Figures:
    """A model and an optimizer that were made before the block; then one that has stepped."""
    found: Figures = {}
    one = alone(Reader, momentum)
    for name, options in (("sharded", {}), ("model_parallel", _TENSOR)):
        torch.manual_seed(0)
        model = Reader()
        optimizer = momentum(model.parameters())
        stepped = Reader()
        used = adamw(stepped.parameters())
        stepped(sentences()[:2][0]).sum().backward()
        used.step()
        with strategy(name, **options) as made:
            made.prepare(optimizer, model)
            train(model, optimizer)
            ours = made.full_state(model)
            late = refused(lambda made=made, a=stepped, b=used: made.prepare(a, b))
        found[f"{name}{options}"] = {"apart": apart(ours, one), "late": late}
    return found


def part_first(_: int) -> Figures:
    """A part that is called by itself before the whole has ever been."""
    found: Figures = {}
    for zero in (2, 3):
        with strategy("sharded", zero=zero):
            model = Tower(8, 2)
            momentum(model.parameters())
            model.blocks(torch.ones(2, 8))
            found[f"zero={zero}"] = refused(lambda model=model: model(torch.ones(2, 8)))
    return found


def part_for_itself(_: int) -> Figures:
    """A part that holds what is gathered with the whole, called to evaluate."""
    found: Figures = {}
    plain = _front_of_a_trained(contextlib.nullcontext())
    for zero in (2, 3):
        ours = _front_of_a_trained(strategy("sharded", zero=zero))
        found[f"zero={zero}"] = (ours - plain).abs().max().item()
    return found


def _front_of_a_trained(block: contextlib.AbstractContextManager[Any]) -> torch.Tensor:
    torch.manual_seed(3)
    inputs = torch.randn(4, 8)
    with block:
        model = _WithShared()
        optimizer = momentum(model.parameters())
        model(inputs).square().mean().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            found: torch.Tensor = model.front(inputs)
    return found


class _WithShared(nn.Module):
    """Two parts with one layer between them, which is gathered with the whole."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(8, 8)
        self.front = nn.Sequential(shared, nn.ReLU(), nn.Linear(8, 8))
        self.back = nn.Sequential(nn.Linear(8, 8), shared)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.back(self.front(x))
        return found


class OneRow(Reader):
    """With a parameter of fewer rows than there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.most = nn.Parameter(torch.ones(1, CLASSES))

    def forward(self, *x: Any) -> Any:
        return super().forward(*x) * self.most


def penalties(ranks: int) -> Figures:
    """A penalty on the parameters beside the output, of which some are cut; its batches are uneven
    and leave a rank without a sample. Where a loss is weighed it is refused."""
    found: Figures = {}
    ways = _ways(ranks, _OPTIMIZERS, _HALVED)
    for when in ("before", "after"):
        torch.manual_seed(0)
        plain = OneRow()
        _penalised(plain, momentum(plain.parameters()), when)
        for name, options in ways:
            with strategy(name, **options) as made:
                torch.manual_seed(0)
                model = OneRow()
                _penalised(model, momentum(model.parameters()), when)
                ours = made.full_state(model)
            found[f"{name}{options} {when}"] = apart(ours, _state(plain))
    return found


def _penalised(model: nn.Module, optimizer: Any, when: str) -> None:
    for x, y in DataLoader(sentences(17), batch_size=16):
        optimizer.zero_grad()
        early = _penalty(model) if when == "before" else 0.0
        loss = F.cross_entropy(model(x), y)
        (loss + (early if when == "before" else _penalty(model))).backward()
        optimizer.step()


def _penalty(model: nn.Module) -> Any:
    return 1e-2 * sum(p.square().sum() + p.abs().mean() for p in model.parameters())


def weighed_penalties(_: int) -> Figures:
    """In train_step, which weighs uneven shares itself; and by hand, where it is refused."""
    found: Figures = {"weighed": {}, "apart": {}}
    torch.manual_seed(0)
    plain = Reader()
    _penalised(plain, momentum(plain.parameters()), "after")
    for name, options in (("sharded", {}), ("sharded", {"zero": 2}), ("model_parallel", _TENSOR)):
        with strategy(name, **options) as made:
            torch.manual_seed(0)
            model = Reader()
            optimizer = momentum(model.parameters())
            batches = DataLoader(sentences(17), batch_size=16)
            model, optimizer, batches = made.prepare(model, optimizer, batches)

            def loss(output: Any, target: Any, model: Any = model) -> Any:
                return F.cross_entropy(output, target) + _penalty(model)

            step = made.train_step(model, loss, optimizer)
            if options.get("zero") != 2:  # whose parameters are whole after a forward pass
                x, y = sentences(4)[:]
                value = loss(model(x), y)
                found["weighed"][name] = refused(lambda made=made, v=value: made.weigh(v, 3))
        for batch in batches:  # after the block
            step(*batch)
        found["apart"][f"{name}{options}"] = apart(made.full_state(model), _state(plain))
    found["looks on"] = innermost_mode() is not None
    return found


class Kept(nn.Module):
    """Keeps the size of what its inner layers give, for the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.head, self.size = nn.Linear(8, CLASSES), torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.inner(x)
        self.size = inner.abs().mean()
        out: torch.Tensor = self.head(inner)
        return out


def kept_inside(_: int) -> Figures:
    """A loss of what layers inside a model give: of all of it, or of a rank's columns."""

    def trained(*, columns: bool = False) -> Figures:
        torch.manual_seed(0)
        model, kept = Kept(), [torch.zeros(())]
        if columns:
            hook = lambda _, __, given: kept.append(given.abs().mean())  # noqa: E731
            model.inner[1].register_forward_hook(hook)
        optimizer = momentum(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            x, y = torch.randn(6, 8), torch.arange(6) % CLASSES
            (F.cross_entropy(model(x), y) + model.size + kept[-1]).backward()
            optimizer.step()
        now = dream.current()
        return _state(model) if now is None else now.full_state(model)

    with strategy("model_parallel", split="tensor"):
        whole, shard = trained(), trained(columns=True)
    with strategy("model_parallel", split="tensor", plan={"inner.0": "column", "inner.2": "row"}):
        said = refused(lambda: trained(columns=True))
    apart_by = {"whole": apart(whole, trained()), "shard": apart(shard, trained(columns=True))}
    return {"apart": apart_by, "said": said}


class Changing(nn.Module):
    """What a layer gives is changed in place: a view, of a Linear on three dims."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, WIDTH)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.words(x)
        changed = self.first(hidden)
        changed += hidden
        other = self.second(torch.tanh(changed))
        other += changed
        return self.head(other.mean(dim=1))


def changed_in_place(_: int) -> Figures:
    one = alone(Changing, momentum)
    return {
        f"zero={zero}": apart(split(Changing, momentum, "sharded", zero=zero), one)
        for zero in (2, 3)
    }


def refusals(_: int) -> Figures:
    """What tensors cannot do is refused when a model is prepared, naming the layer."""
    convolution = nn.Sequential(nn.Conv1d(4, 4, 1), nn.Flatten(), nn.Linear(8, 4))
    recurrent = nn.ModuleDict({"memory": nn.LSTM(4, 4)})
    odd = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4))
    renormed = nn.ModuleDict({"words": nn.Embedding(8, 4, max_norm=1.0)})
    tied = _Tied()
    plain = nn.Sequential(nn.Linear(4, 4))
    wanted: dict[str, tuple[nn.Module, Any]] = {
        "convolution": (convolution, {"0": "column"}),
        "recurrent": (recurrent, {"memory": "row"}),
        "odd": (odd, {"0": "column", "2": "row"}),
        "renormed": (renormed, {"words": "row"}),
        "tied": (tied, {"head": "column"}),
        "heads": (Reader("attribute", 1), {"*.query": "column", "*.key": "column",
                                           "*.value": "column", "*.out": "row"}),
        "packed": (nn.ModuleDict({"attend": nn.MultiheadAttention(8, 2)}), {"*.out_proj": "row"}),
        "nobody": (plain, {"fc*": "column"}),
        "word": (plain, {"0": "columns"}),
    }  # fmt: skip
    found: Figures = {}
    for what, (model, plan) in wanted.items():
        with strategy("model_parallel", split="tensor", plan=plan) as made:
            found[what] = refused(lambda made=made, model=model: made.prepare(model))
    with strategy("sharded", zero=1):
        layer = nn.Linear(4, 4)
        found["whole steps"] = refused(lambda: torch.optim.Adafactor(layer.parameters()))
        table = nn.Embedding(4, 2, sparse=True)
        descent = torch.optim.SGD(table.parameters(), lr=0.1)
        table(torch.arange(4)).mean().backward()
        found["sparse rows"] = refused(descent.step)
    with strategy("hybrid", split="tensor", data=2, model=1):
        table = nn.Embedding(4, 2, sparse=True)
        momentum(table.parameters())
        found["sparse copies"] = refused(lambda: table(torch.arange(4)).mean().backward())
    with strategy("model_parallel", split="tensor"):
        model = Tower(8, 2)
        x = torch.ones(2, 8, requires_grad=True)
        found["twice"] = refused(lambda: torch.autograd.grad(model(x).sum(), x, create_graph=True))
        each = torch.func.vmap(torch.func.grad(lambda row: model(row[None]).sum()))
        found["each sample"] = refused(lambda: each(torch.ones(2, 8)))
        cut = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        momentum(cut.parameters())
        found["half"] = refused(lambda: cut[0](torch.ones(2, 8)).sum())
    with strategy("model_parallel", split="tensor"):
        model = Reader()
        momentum(model.parameters())
        rank = dream.current().topology.rank  # type: ignore[union-attr]
        words = torch.full((2, 6), rank)
        found["other samples"] = refused(lambda: model(words))
    with strategy("sharded"):
        two = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        loss = two(torch.ones(2, 4)).sum()
        found["some"] = refused(lambda: loss.backward(inputs=[*two[1].parameters()]))
    with strategy("sharded", sync_batch_norm=False):
        normed = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        momentum(normed.parameters())
        batches = DataLoader(TensorDataset(torch.ones(2, 4)), batch_size=2)
        found["one sample"] = refused(lambda: normed(next(iter(batches))[0]))
    with strategy("sharded"):
        with torch.device("meta"):
            bare = _Bare()
        found["bare"] = refused(lambda: momentum(bare.parameters()))
        even = nn.Linear(4, 4)
        found["spectral"] = refused(lambda: nn.utils.parametrizations.spectral_norm(even))
    return found


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(x))


class _Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def plans(_: int) -> Figures:
    """Which shapes this rank holds, by plan; and that the numbers stay."""
    found: Figures = {}
    hand = {"blocks.?.up": "column", "blocks.?.down": "row", "head": "column", "words": "column"}
    for what, plan in (("auto", "auto"), ("by hand", hand)):
        torch.manual_seed(0)
        with strategy("model_parallel", split="tensor", plan=plan) as made:
            model = Reader()
            train(model, momentum(model.parameters()))
            shapes = {n: tuple(_own(p).shape) for n, p in model.named_parameters()}
            ours = made.full_state(model)
        found[what] = {"shapes": shapes, "apart": apart(ours, alone(Reader, momentum))}
    make_model = partial(Reader, dropout=0.3)
    ours = split(make_model, momentum, "model_parallel", split="tensor")
    found["dropout"] = apart(ours, alone(make_model, momentum))
    encoder = partial(_Encoder)
    with heard() as lines:
        ours = split(encoder, momentum, "model_parallel", split="tensor")
    found["told"] = lines
    found["encoder"] = apart(ours, alone(encoder, momentum))
    for way in ("permuted", "bias"):
        make_model = partial(Reader, way)
        ours = split(make_model, momentum, "model_parallel", split="tensor")
        found[way] = apart(ours, alone(make_model, momentum))
    for what, each in (("called again", _Refined), ("chancy", _Chancy)):
        ours = split(each, momentum, "model_parallel", split="tensor")
        found[what] = apart(ours, alone(each, momentum))
    for p in (0.0, 0.3):
        make_model = partial(Hasty, p)
        ours = split(make_model, momentum, "model_parallel", split="tensor")
        found[f"hasty {p}"] = apart(ours, alone(make_model, momentum))
    found["tied"] = _tied_and_sharded()
    make_model = partial(Reader, "attribute", 1)  # one head has no halves
    ours = split(make_model, momentum, "model_parallel", split="tensor")
    found["one head"] = apart(ours, alone(make_model, momentum))
    found["whole batch"] = _coupled_in_a_whole_batch()
    found["replaced"] = {name: _replaced(name) for name in ("up", "down")}
    return found


def _replaced(name: str) -> str:
    """One layer of a pair is replaced in the midst of training."""

    def act() -> None:
        with strategy("model_parallel", split="tensor"):
            model = _Pair()
            model(torch.randn(4, 8)).sum().backward()
            old = getattr(model, name)
            setattr(model, name, torch.nn.Linear(old.in_features, old.out_features))
            model(torch.randn(4, 8)).sum().backward()

    return refused(act)


class _Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


def _coupled_in_a_whole_batch() -> str:
    """A loss that couples its samples, where every rank has all of them."""

    def act() -> None:
        with strategy("model_parallel", split="tensor", strict=True):
            model = Tower(8, 2)
            optimizer = momentum(model.parameters())
            for (x,) in DataLoader(TensorDataset(torch.randn(8, 8)), batch_size=4):
                out = model(x)
                ((out @ out.T).softmax(1).mean() + torch.cat([out, out])[1:].mean()).backward()
                optimizer.step()

    return refused(act)


def _tied_and_sharded() -> Figures:
    def make_model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Unflatten(1, (6,)), _TiedReader())

    found = {}
    for name, options in (("sharded", {}), ("model_parallel", _TENSOR)):
        ours = split(make_model, momentum, name, **options)
        found[name] = max(apart(ours, alone(make_model, momentum)).values())
    return found


class _TiedReader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(x).mean(dim=1))


class Hasty(nn.Module):
    """Changes in place what a cut layer gives."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.words = nn.Embedding(20, WIDTH)
        drop = [nn.Dropout(p)] if p else []
        layers = [nn.Linear(WIDTH, 32), nn.ReLU(inplace=True), *drop, nn.Linear(32, WIDTH)]
        self.mix, self.head = nn.Sequential(*layers), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.words(x)).mean(dim=1))


class _Refined(nn.Module):
    """Gives a layer what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.into = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.again, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.into(self.words(x).mean(dim=1)))
        for _ in range(3):
            hidden = torch.tanh(self.again(hidden))
        return self.head(hidden)


class _Chancy(nn.Module):
    """Draws by Python and NumPy, and counts its calls, in a buffer too; another is made anew."""

    def __init__(self) -> None:
        super().__init__()
        random.seed(1)
        np.random.seed(1)
        self.calls = 0
        self.register_buffer("counted", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.words, self.up = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 32)
        self.down, self.head = nn.Linear(32, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.counted += 0.1
        scale = 1 + random.random() + float(np.random.rand()) + 0.1 * self.calls + self.counted
        hidden = self.words(x).mean(dim=1)
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        return self.head(hidden + self.down(self.up(hidden).relu()) * scale)


class _Encoder(nn.Module):
    """torch's own encoder layer, in training and in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(self.words(x))
        if self.training:
            self.eval()
            with torch.no_grad():
                assert (self.layer(self.words(x)) - hidden).abs().max() < 1e-5
            self.train()
        return self.head(hidden.mean(dim=1))


def _own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


CASES = (clipped, on_meta, copies, saved, prepared, part_first, part_for_itself, penalties,
         weighed_penalties, changed_in_place, kept_inside, pieces, refusals, plans)  # fmt: skip


def all_at_two() -> Figures:
    torch.set_num_threads(1)
    found: Figures = {f"memory {zero}": memory(2, zero, 1) for zero in (1, 2, 3)}
    for case in (exact, *CASES):
        found[case.__name__] = case(2)
    return found


def all_at_four() -> Figures:
    torch.set_num_threads(1)
    found: Figures = {f"memory {zero}": memory(4, zero, 1) for zero in (1, 2, 3)}
    found |= {f"memory {zero} data 2": memory(4, zero, 2) for zero in (1, 3)}
    more = {case.__name__: case(4) for case in (copies, penalties)}
    return found | {"exact": exact(4), "clipped": clipped(4)} | more


JOBS = {2: all_at_two, 4: all_at_four}
RANKS = [2, pytest.param(4, marks=pytest.mark.exhaustive)]


@cache
def found(ranks: int) -> list[dict[str, Any]]:
    """Run the job once for all tests of this folder."""
    return dream.launch(JOBS[ranks], n=ranks, framework="torch", timeout=900)


def figures(case: str, ranks: int = 2) -> list[tuple[str, Any]]:
    """(what, figures) of a case, on every rank."""
    return [item for rank in found(ranks) for item in rank[case].items()]
