"""Each private name of torch that dream uses, as it was seen in torch 2.13; and no other file of
the adapter names one."""

from __future__ import annotations

import ast
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import BaseTorchFunctionMode
from torch.utils.data import get_worker_info

from dream.adapters.pytorch import private
from dream.adapters.pytorch.adapter import phase_rules
from dream.adapters.pytorch.parallel.fsdp import private as fsdp
from dream.adapters.pytorch.parallel.replicas import private as replicas

ADAPTER = Path(private.__file__).parent
SEEN_IN = "2.13"
Pair = namedtuple("Pair", "left right")
PLACES = (
    "private.py",
    "data/reading/private.py",
    "loss/private.py",
    "parallel/fsdp/private.py",
    "parallel/replicas/private.py",
)
LEFT = {"parallel/parameter_server": 3, "tools": 35}
"""How often folders that are yet to come name private things. These numbers only shrink."""


def test_the_release_is_one_it_was_seen_in() -> None:
    """A new release is looked through before it is added here."""
    assert torch.__version__.startswith((SEEN_IN, "2.12", "2.14", "2.15"))


def test_backward_passes_are_numbered() -> None:
    seen: list[int] = []
    ended: list[bool] = []
    x = torch.ones((), requires_grad=True)
    x.register_hook(lambda _: seen.append(private.current_backward()))
    x.register_hook(lambda _: seen.append(private.recomputing()))
    x.register_hook(lambda _: private.after_backward(lambda: ended.append(True)))
    assert private.current_backward() == -1
    assert not private.recomputing()
    (x * 2).backward()
    assert seen[0] != -1
    assert seen[1]
    assert ended


def test_any_node_takes_its_hooks_by_the_class_of_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[object] = []
    register = getattr(torch.autograd.Function, private.NODE_HOOK)

    def noted(table: object, hook: object) -> object:
        seen.append(hook)
        return register(table, hook)

    monkeypatch.setattr(torch.autograd.Function, private.NODE_HOOK, noted)
    made = torch.ones(2, requires_grad=True) * 2
    node = made.grad_fn
    assert node is not None
    hooks = [lambda *_: None, lambda *_: seen.append(private.current_node())]
    node.register_hook(hooks[0])
    node.register_prehook(hooks[1])
    assert seen == hooks
    made.sum().backward()
    made.register_hook(print)  # which a tensor does by itself
    assert seen == [*hooks, node]


def test_changes_in_place_are_counted() -> None:
    x = torch.zeros(2)
    before = private.version_of(x)
    x.add_(1)
    assert private.version_of(x) == before + 1
    assert private.to_local(x) is x


def test_storages_change_places_with_all_their_views() -> None:
    assert private.swap_storages is not None
    x, other = torch.zeros(4), torch.arange(4.0)
    view, at = x[2:], other.data_ptr()
    private.swap_storages(x.untyped_storage(), other.untyped_storage())
    assert x.data_ptr() == at
    assert view.tolist() == [2.0, 3.0]
    assert other.tolist() == [0.0] * 4


def test_lists_are_changed_at_once() -> None:
    xs = [torch.ones(2), torch.ones(3)]
    private.foreach_mul_(xs, 2.0)
    assert xs[1].tolist() == [2.0] * 3
    private.foreach_copy_(xs, [torch.zeros(2), torch.zeros(3)])
    assert xs[0].tolist() == [0.0] * 2


def test_a_modules_calls_are_taken_and_passed_by() -> None:
    module = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    expected = module(x)
    assert not private.has_hooks(module)
    vars(module)[private.CALL] = lambda _: "taken"
    assert module(x) == "taken"
    assert torch.equal(private.own_call(module)(x), expected)
    module.register_forward_hook(lambda *_: None)
    assert private.has_hooks(module)


def test_a_copy_without_tensors() -> None:
    module = nn.Sequential(nn.LSTM(2, 2), nn.BatchNorm1d(2))
    for part in module:
        _, parameters, _ = private.tables(replicas.bare_copy(part))
        assert parameters == {} or all(value is None for value in parameters.values())
    children, _, _ = private.tables(module)
    assert [*children] == ["0", "1"]


def test_a_recurrent_layer_knows_other_weights() -> None:
    layer = nn.GRU(2, 2)
    copy = replicas.bare_copy(layer)
    for name, weight in layer.named_parameters():
        other = weight.detach().clone()
        setattr(copy, name, other)
        assert getattr(copy, name) is other
    kept = copy._flat_weight_refs
    replicas.know_weights(copy)
    replicas.know_weights(nn.Linear(1, 1))
    assert copy._flat_weight_refs is not kept
    known = copy._flat_weight_refs
    copy(torch.ones(1, 2))
    assert copy._flat_weight_refs is known


def test_batch_norms() -> None:
    norm = nn.BatchNorm1d(2)
    assert isinstance(norm, private.BatchNorm)
    assert isinstance(nn.InstanceNorm1d(2), private.NormBase)
    with pytest.raises(ValueError, match="2D or 3D"):
        private.check_input_dim(norm, torch.ones(2))


def test_operations_say_what_they_write() -> None:
    op = torch.ops.aten.add_.Tensor
    assert isinstance(op, private.OpOverload)
    assert private.is_in_place(op)
    assert private.written_arguments(op)[0] == ("self", True)
    assert not private.is_in_place(torch.ops.aten.add.Tensor)


def test_trees() -> None:
    tree = {"a": [1, (2,)], "b": 3}
    assert private.tree_leaves(tree) == [1, 2, 3]
    assert private.tree_map(lambda x: x + 1, tree) == {"a": [2, (3,)], "b": 4}


def test_what_ddp_has() -> None:
    """Ranks are needed to make one; tests/contract runs these."""
    assert callable(DistributedDataParallel._remove_autograd_hooks)
    assert callable(torch.distributed.Reducer._rebuild_buckets)
    assert callable(torch.distributed.Reducer._check_reducer_finalized)
    assert private.GradBucket is torch.distributed.GradBucket
    module = nn.Linear(2, 2)
    private.ignore_parameters(module, ["weight"])
    assert module._ddp_params_and_buffers_to_ignore == ["weight"]


def test_what_dtensors_and_lbfgs_have() -> None:
    """tests/adapters/pytorch/parallel/test_hands_on_shards.py runs these."""
    dispatcher = private.dispatcher_of(DTensor)
    assert isinstance(getattr(dispatcher, private.DTENSOR_HANDLERS), dict)
    assert callable(getattr(torch.optim.LBFGS, private.LBFGS_GATHERS))
    assert callable(getattr(torch.optim.LBFGS, private.LBFGS_ADDS))
    private.be_whole(torch.ones(()))


def test_structures_are_taken_apart_and_put_together() -> None:
    for value in ([1, 2], (1, 2), {"a": 1, "b": 2}, OrderedDict(a=1)):
        parts = private.structure_of(value)
        assert parts is not None
        assert parts[0] in private.structure_kinds()
        assert private.structure_made(*parts) == value
    assert private.structure_of(3) is None
    assert private.is_named_tuple(Pair(1, 2))
    assert not private.is_named_tuple((1, 2))


def test_what_is_asked_of_tensors_and_of_a_backward_pass() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    assert private.is_view(x.view(6))
    made = private.changeable(x.view(3, 2) * 2)
    made.add_(1.0)
    assert not private.is_view(made)
    seen: list[bool] = []
    x.register_hook(lambda _: private.after_backward(lambda: seen.append(x.grad is not None)))
    x.sum().backward()
    assert seen == [True]


def test_no_mode_sees_functions_inside() -> None:
    names = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            names.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        F.relu(torch.ones(2))
        before = len(names)
        with private.functions_unseen():
            F.relu(torch.ones(2))
    assert 0 < before == len(names)


def test_what_is_asked_of_modules() -> None:
    layer = nn.Linear(2, 2)
    hook = lambda *_: None  # noqa: E731
    assert not private.has_hooks(layer)
    layer.register_forward_pre_hook(hook)
    assert private.has_hooks(layer)
    assert not private.sees_outputs(layer)
    layer.register_forward_hook(hook)
    assert private.sees_outputs(layer)
    layer.register_state_dict_post_hook(hook)
    assert private.has_hooks(layer)
    assert private.has_state_dict_hook(layer, hook)
    kept = fsdp.without_fsdp(vars(layer))
    assert [*kept["_forward_hooks"].values()] == [hook]
    layer.register_forward_hook(fsdp.without_fsdp)  # one of dream's own
    assert fsdp.without_fsdp(vars(layer)).keys() == kept.keys()
    assert [*fsdp.without_fsdp(vars(layer))["_forward_hooks"].values()] == [hook]
    optimizer = torch.optim.SGD(layer.parameters())
    unmade = (nn.Module.__new__(nn.Module), torch.optim.SGD.__new__(torch.optim.SGD))
    assert [private.has_tables(item) for item in (layer, optimizer, *unmade)] == [1, 1, 0, 0]
    tied = nn.Module()
    tied.one = tied.two = nn.Parameter(torch.ones(1))
    tied.register_buffer("held", torch.ones(1))
    assert [name for name, _ in private.own_parameters(tied)] == ["one", "two"]
    assert [name for name, _ in private.own_buffers(tied)] == ["held"]
    stack = nn.Sequential(layer)
    assert not [*private.without_children(stack).children()]
    assert [*stack.children()] == [layer]


def test_first_values_are_those_of_constructors() -> None:
    torch.manual_seed(3)
    right = nn.MultiheadAttention(8, 2)
    other = nn.MultiheadAttention(8, 2)
    torch.manual_seed(3)
    private.attention_reset(other)
    assert all(
        torch.equal(a, b) for a, b in zip(right.parameters(), other.parameters(), strict=True)
    )


def test_parameters_are_told_from_what_is_computed() -> None:
    layer = nn.Linear(2, 3)
    made = layer(torch.ones(1, 2))
    assert private.is_parameter(layer.weight)
    assert private.is_parameter(layer.weight.t())
    assert not private.is_parameter(made)
    assert not private.is_parameter(made.t())
    assert not private.is_parameter(torch.ones(2))


def test_layers_that_normalise_over_a_batch() -> None:
    assert private.normalises_batches(nn.BatchNorm1d(2))
    assert private.normalises_batches(nn.InstanceNorm1d(2, track_running_stats=True))
    assert not private.normalises_batches(nn.InstanceNorm1d(2))
    assert not private.normalises_batches(nn.LayerNorm(2))
    encoder = nn.TransformerEncoderLayer(4, 2)
    private.unfused(encoder)
    assert encoder.activation_relu_or_gelu == 0


def test_function_modes_and_what_is_compiled() -> None:
    torch.compiler.reset()
    assert not private.compiles()
    torch.compile(torch.sin, backend="eager")
    assert private.compiles()
    torch.compiler.reset()
    assert private.innermost_mode() is None
    with BaseTorchFunctionMode() as mode:
        assert private.innermost_mode() is mode
    assert private.innermost_mode() is None
    assert private.default_device_mode() is None
    torch.set_default_device("cpu")
    assert private.default_device_mode() is private.innermost_mode()
    torch.set_default_device(None)
    assert private.innermost_mode() is None


def test_what_is_compiled_within_its_caller_alone() -> None:
    """Seen in 2.11 and 2.13."""
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def within(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def caller(x: torch.Tensor) -> torch.Tensor:
        return within(x) * 2

    private.not_compiled_alone(within)
    assert torch.compile(within, backend=backend)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert not graphs
    assert torch.compile(caller, backend=backend)(torch.ones(2)).tolist() == [4.0, 4.0]
    assert len(graphs) == 1
    torch.compiler.reset()


def test_where_phases_are_and_what_they_are_called() -> None:
    for rule in phase_rules():
        place = Path(rule.place)
        assert place.exists(), rule
        files = place.rglob("*.py") if place.is_dir() else [place]
        text = "".join(file.read_text() for file in files)
        unknown = [name for name in rule.functions if f"def {name}(" not in text]
        assert unknown in ([], ["__call__"]), rule  # which modules and dream's own call share
    loader = torch.utils.data.DataLoader([1.0])
    assert isinstance(iter(loader), private.LoaderIterator)


def test_no_other_file_names_what_is_private() -> None:
    own = {name for place in PLACES for name in _names_of(ADAPTER / place)}
    found: dict[str, list[str]] = {}
    for path in sorted(ADAPTER.rglob("*.py")):
        place = path.relative_to(ADAPTER).as_posix()
        if place not in PLACES:
            folder = next((name for name in LEFT if place.startswith(name)), "")
            found.setdefault(folder, []).extend(f"{place}: {what}" for what in _uses(path, own))
    assert found.pop("") == []
    assert {folder: len(uses) for folder, uses in found.items() if len(uses) > LEFT[folder]} == {}


def test_the_rule_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "import torch\nfrom torch.utils._pytree import tree_map\n"
        "torch._foreach_add_([], 1)\nmodule._call_impl()\nself._call_impl()\n"
    )
    assert len(_uses(path, {"_call_impl"})) == 3


def _names_of(path: Path) -> set[str]:
    """The private attributes that a file names."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and _hidden(node.attr)}


def _uses(path: Path, known: set[str]) -> list[str]:
    """Private imports from torch, private attributes of torch's, and those known to be torch's."""
    tree = ast.parse(path.read_text())
    found, torchs = [], {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            torchs |= {alias.asname or alias.name for alias in node.names}
            hidden = any(map(_hidden, (node.module or "").split(".")))
            found += [f"import {a.name}" for a in node.names if hidden or _hidden(a.name)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _hidden(node.attr):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own and (node.attr in known or _root(node) in torchs):
                found.append(ast.unparse(node))
    return found


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _hidden(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_what_vmap_gives_is_known_for_what_cannot_be_read() -> None:
    seen: list[bool] = []

    def row(x: torch.Tensor) -> torch.Tensor:
        seen.append(private.is_batched(x))
        return x.sin().sum()

    x = torch.ones(3, 2)
    torch.func.vmap(torch.func.grad(row))(x)
    torch.func.grad(row)(x[0])
    row(x[0])
    assert seen == [True, False, False]


def test_transforms_are_named_the_innermost_last() -> None:
    seen: list[list[str]] = []

    def row(x: torch.Tensor) -> torch.Tensor:
        seen.append(private.transforms())
        return x.sin().sum()

    x = torch.ones(3, 2)
    torch.func.vmap(torch.func.grad(row))(x)
    torch.func.grad(lambda x: torch.func.vmap(row)(x).sum())(x)
    row(x)
    assert seen == [["Vmap", "Grad"], ["Grad", "Vmap"], []]


def test_compiled_modules_are_known() -> None:
    layer = nn.Linear(1, 1)
    assert private.is_compiled(torch.compile(layer, backend="eager"))  # type: ignore[arg-type]
    assert not private.is_compiled(layer)


def test_nodes_tell_the_sizes_of_what_they_made() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    made = (x * 2).sum(0)
    assert private.shape_of(made.grad_fn) == (2,)
    assert private.shape_of(made.sum().grad_fn) == ()


def test_a_node_knows_the_function_that_made_it() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(_: object, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    node = Doubled.apply(torch.ones(1, requires_grad=True)).grad_fn
    assert getattr(node, private.FUNCTION) is Doubled


def test_classes_of_functions_are_counted_as_they_are_made() -> None:
    """What `ScriptFunctions` looks at in each backward pass after the block."""
    before = repr(torch.autograd.function.AUTOGRAD_FUNCTION_COUNTER)
    type("Made", (torch.autograd.Function,), {})
    assert repr(torch.autograd.function.AUTOGRAD_FUNCTION_COUNTER) != before


def test_a_worker_is_told_its_number_by_a_place_of_torchs() -> None:
    owner, name, kind = private.worker_info()
    assert getattr(owner, name) is get_worker_info() is None
    info = kind(1, 4, 7, None)
    setattr(owner, name, info)
    try:
        assert get_worker_info() is info
        assert (info.id, info.num_workers, info.seed, info.dataset) == (1, 4, 7, None)
    finally:
        setattr(owner, name, None)
