"""What works on this machine, found without importing a framework."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dream.shared_memory import status
from dream.strategies import registry
from dream.strategies.spec import Framework, Spec

HOROVOD_STATUS = "dream.adapters.horovod.build:status"
_DISTRIBUTIONS = {
    "dream-systems": ("dream-systems",),
    "torch": ("torch",),
    "tensorflow": ("tensorflow-cpu", "tensorflow"),
    "keras": ("keras",),
    "horovod": ("horovod",),
    "numpy": ("numpy",),
    "cloudpickle": ("cloudpickle",),
}


def installed(framework: Framework) -> bool:
    return find_spec(framework) is not None


def gpus() -> int:
    """NVIDIA devices that the driver shows."""
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def obstacle(spec: Spec, framework: Framework, reduction: str) -> str:
    """Why a strategy cannot run with a reduction here and now, and what to do; empty where it
    can. reduction "auto" asks for the strategy alone."""
    if (framework, spec.name) not in registry.STRATEGIES:
        return "not in this framework"
    if not installed(framework):
        return f"pip install 'dream-systems[{framework}]'"
    if reduction == "nccl" and not gpus():
        return "needs GPUs"
    if reduction in ("shared_memory", "hierarchical"):
        return status().why
    if reduction == "horovod" or (spec.reductions[framework] == ("horovod",)):
        return "" if horovod_status().serves(framework) else "dream build-horovod"
    return ""


def horovod_status() -> Any:
    """The ring's BuildStatus."""
    return registry.load(HOROVOD_STATUS)()


def versions() -> dict[str, str | None]:
    """Of what figures depend on; None where it is not installed."""
    return {name: _version(names) for name, names in _DISTRIBUTIONS.items()}


def _version(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
