"""(framework, name) -> where it is implemented. Imported on use, so that a framework that is
not needed is never loaded. Third parties add theirs by entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dream._errors import ConfigurationError, NotInstalled, Unsupported
from dream.strategies import spec as specs
from dream.strategies.spec import Framework, Spec

if TYPE_CHECKING:
    from dream._adapter import Plan

_TORCH = "dream.adapters.pytorch"
_TENSORFLOW = "dream.adapters.tensorflow"
_HOROVOD = "dream.adapters.horovod"
_SHARED = "dream.adapters.shared_memory"

STRATEGIES: Mapping[tuple[str, str], str] = {
    ("torch", "single"): f"{_TORCH}.parallel.single:single",
    ("torch", "mirrored"): f"{_TORCH}.parallel.ddp.parallelism:ddp",
    ("torch", "multi_worker_mirrored"): f"{_TORCH}.parallel.ddp.parallelism:ddp",
    ("torch", "horovod"): f"{_TORCH}.parallel.ddp.parallelism:ddp",
    ("torch", "data_parallel"): f"{_TORCH}.parallel.replicas.parallelism:DataParallel",
    ("torch", "model_parallel"): f"{_TORCH}.parallel.sharding.parallelism:model_parallel",
    ("torch", "hybrid"): f"{_TORCH}.parallel.sharding.parallelism:model_parallel",
    ("torch", "sharded"): f"{_TORCH}.parallel.fsdp.parallelism:sharded",
    ("torch", "parameter_server"): f"{_TORCH}.parallel.parameter_server.adapter:ParameterServer",
    ("torch", "local_sgd"): f"{_TORCH}.parallel.local_sgd:local_sgd",
    ("tensorflow", "single"): f"{_TENSORFLOW}.parallel.replicas:single",
    ("tensorflow", "mirrored"): f"{_TENSORFLOW}.parallel.replicas:mirrored",
    ("tensorflow", "multi_worker_mirrored"): f"{_TENSORFLOW}.parallel.replicas:mirrored",
    ("tensorflow", "horovod"): f"{_TENSORFLOW}.parallel.replicas:mirrored",
    ("tensorflow", "data_parallel"): f"{_TENSORFLOW}.parallel.replicas:mirrored",
    ("tensorflow", "sharded"): f"{_TENSORFLOW}.parallel.sharding.parallelism:ShardedParallelism",
    ("tensorflow", "model_parallel"): f"{_TENSORFLOW}.parallel.split:model_parallel",
    ("tensorflow", "parameter_server"): f"{_TENSORFLOW}.parallel.parameter_server:parameter_server",
    ("tensorflow", "local_sgd"): f"{_TENSORFLOW}.parallel.local_sgd:LocalSgd",
    ("tensorflow", "hybrid"): f"{_TENSORFLOW}.parallel.split:model_parallel",
}
"""An Adapter, or what the framework's own adapter is made of; built from a Plan."""

ADAPTERS: Mapping[str, str] = {"torch": f"{_TORCH}.adapter:TorchAdapter"}
"""A framework's one adapter, made of a strategy."""

REDUCTIONS: Mapping[tuple[str, str], str] = {
    ("torch", "auto"): f"{_TORCH}.collectives:connect_auto",
    ("torch", "gloo"): f"{_TORCH}.collectives:connect",
    ("torch", "nccl"): f"{_TORCH}.collectives:connect",
    ("torch", "horovod"): f"{_HOROVOD}.pytorch:connect",
    ("torch", "shared_memory"): f"{_SHARED}.pytorch:connect",
    ("torch", "hierarchical"): f"{_SHARED}.hosts:torch",
    ("tensorflow", "auto"): f"{_TENSORFLOW}.collectives:connect_auto",
    ("tensorflow", "grpc"): f"{_TENSORFLOW}.collectives:connect",
    ("tensorflow", "nccl"): f"{_TENSORFLOW}.collectives:connect",
    ("tensorflow", "horovod"): f"{_HOROVOD}.tensorflow:connect",
    ("tensorflow", "shared_memory"): f"{_SHARED}.tensorflow:connect",
    ("tensorflow", "hierarchical"): f"{_SHARED}.hosts:tensorflow",
}
"""A function from a Cluster and the reduction's name to a Wire."""

TENSORS: Mapping[str, str] = {
    "torch": f"{_TORCH}.tensors:TorchTensors",
    "tensorflow": f"{_TENSORFLOW}.tensors:TensorFlowTensors",
}
"""The Tensors of a framework."""

GRADIENTS: Mapping[str, str] = {
    "torch": f"{_TORCH}.keras.engine:differentiate",
    "tensorflow": f"{_TENSORFLOW}.keras.engine:differentiate",
}
"""A backward pass of a Keras model, by Keras's backend."""

FIRST_USES: Mapping[str, str] = {
    "torch": f"{_TORCH}.hooks:first_use",
    "tensorflow": "dream.adapters.keras.hooks:first_use",
}
"""A function that has its argument called before the first thing of a framework is made or used,
once; it returns what ends that."""

SEEDS: Mapping[str, str] = {
    "torch": f"{_TORCH}.devices:seed",
    "tensorflow": f"{_TENSORFLOW}.randomness:seed",
}
"""A function that seeds a framework's generators."""

ON_GPU: Mapping[str, str] = {
    "torch": f"{_TORCH}.devices:on_gpu",
    "tensorflow": f"{_TENSORFLOW}.runtime:on_gpu",
}
"""A NumPy array as a framework's tensor on this rank's GPU."""

TUNING = f"{_HOROVOD}.tuning:begin"
"""Has the ring tune itself."""

_RING = f"{_HOROVOD}.build:require"
"""Raises an error that says what the ring lacks here."""

_EXTRAS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow", "rich": "report"}


def load(place: str) -> Any:
    """What `module:name` names. A missing package is named with what brings it."""
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        missing = error.name or ""
        if missing and f"{module}.".startswith(f"{missing}.") and missing.startswith("dream."):
            raise NotInstalled(
                f"{missing} is not there. Needed by: {place}. The checkout has it as adapters/, "
                "which an install puts in its place. Run: pip install -e ."
            ) from error
        if module.startswith(_HOROVOD) and place != _RING:
            load(_RING)()
        missing = missing.partition(".")[0]
        if missing not in _EXTRAS or not isinstance(error, ModuleNotFoundError):
            raise
        raise NotInstalled(
            f"{missing} is not installed. Needed by: {place}. "
            f"Run: pip install 'dream-systems[{_EXTRAS[missing]}]'"
        ) from error


_registered: dict[tuple[str, str], Any] = {}


def register(framework: Framework, spec: Spec, build: Callable[[Plan], Any]) -> None:
    """Have `dream.strategy(spec.name)` build this in a framework. build: from a Plan an Adapter, or
    what the framework's own adapter is made of (in torch a `Parallelism`)."""
    specs.add(spec)
    _registered[framework, spec.name] = build


def strategy(framework: str, name: str) -> Any:
    """What is built from a Plan for a strategy in a framework."""
    if (framework, name) in _registered:
        return _registered[framework, name]
    return _find(STRATEGIES, "dream.strategies", framework, name)


def reduction(framework: str, name: str) -> Any:
    """The function that connects a reduction in a framework."""
    return _find(REDUCTIONS, "dream.reductions", framework, name)


def tensors(framework: str) -> Any:
    """What a framework can do with its tensors."""
    return load(TENSORS[framework])()


def _find(table: Mapping[tuple[str, str], str], group: str, framework: str, name: str) -> Any:
    if (framework, name) in table:
        return load(table[framework, name])
    from importlib.metadata import entry_points  # on use: it is a third of `import dream`

    for point in entry_points(group=group, name=f"{framework}.{name}"):
        return point.load()
    here = [known for kind, known in table if kind == framework]
    what = group.partition(".")[2]
    if not here:
        raise ConfigurationError(f"No adapter for this framework. Received: {framework!r}.")
    raise Unsupported(
        f"{framework} has no such entry among its {what}. Received: {name!r}. "
        f"Use one of: {', '.join(here)}."
    )
