"""What is found without starting anything, or importing a framework."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from dream import _here, cluster
from dream._errors import DreamError
from dream._spec import FRAMEWORKS
from dream.launch.environment import cores
from dream.shared_memory import status

Facts = dict[str, Any]


def facts() -> Facts:
    """Versions, devices, what was built, and the place among the ranks."""
    ring = _here.horovod_status()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": cores(),
        "memory_gib": _memory_gib(),
        "gpus": _gpus(),
        "versions": _here.versions(),
        "horovod": {
            "usable": {name: bool(ring.serves(name)) for name in FRAMEWORKS},
            "why": ring.reason,
            "build": ring.key,
        },
        "shared_memory": _core(),
        "cluster": _cluster(),
    }


def _cluster() -> Facts:
    """Where this process stands, and which variables say so."""
    variables = cluster.variables()
    try:
        place = cluster.detect()
    except DreamError as error:
        return {"launcher": "cannot be told", "why": str(error), "variables": variables}
    return {
        "launcher": place.source,
        "rank": place.rank,
        "world_size": place.world_size,
        "hosts": list(place.hosts),
        "variables": variables,
    }


def _core() -> Facts:
    found = status()
    return {"core": found.path.name if found.path else None, "why": found.why or None}


def _gpus() -> list[str]:
    """Their names, as the driver shows them."""
    found = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return [_after("Model:", file.read_text()) or "NVIDIA" for file in found]


def _processor() -> str:
    try:
        return _after("model name", Path("/proc/cpuinfo").read_text()) or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def _after(label: str, text: str) -> str:
    line = next((line for line in text.splitlines() if line.startswith(label)), "")
    return line.partition(":")[2].strip()


def _memory_gib() -> float:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return round(pages / 2**30, 1)
