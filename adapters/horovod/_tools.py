"""What a build needs on the machine, checked before minutes are spent."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from dream._errors import NotInstalled, Unsupported
from dream.adapters.horovod._sdist import EXTRA
from dream.cluster.settings import inherited

_RUNTIME = ("cloudpickle", "psutil", "pyyaml", "packaging")
_OLDEST_CMAKE = (3, 19)  # cmake_language(DEFER), in recipe/hook.cmake
_MEMORY_PER_JOB = 1.5e9  # one source that includes torch's headers
_COMPILERS = "apt-get install g++ make, or your system's equal"


def check_python() -> None:
    """Raise NotInstalled unless the packages that Horovod imports and installs with are there."""
    if _version("pip") is None:
        raise NotInstalled(
            f"pip is not installed in this environment, and installs the ring. Received: "
            f"{sys.executable}. Install it: python -m ensurepip, or uv pip install pip"
        )
    missing = [name for name in _RUNTIME if _version(name) is None]
    if missing:
        raise _lacking(f"no {', '.join(missing)}")


def check_build() -> Path:
    """Raise NotInstalled unless everything to compile with is there; returns cmake's path."""
    if sys.platform == "win32":
        raise Unsupported(
            "Horovod does not build on Windows. Received: win32. Use another reduction."
        )
    setuptools = _version("setuptools")
    if setuptools is None or int(setuptools.partition(".")[0]) >= 81:
        raise _lacking(f"setuptools {setuptools}, where Horovod's setup.py needs one below 81")
    _check_compiler()
    return _cmake()


def jobs() -> int:
    """Compilers to run at once: a core each, as far as memory goes."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(cores, int(memory / _MEMORY_PER_JOB)))


def _check_compiler() -> None:
    chosen = inherited().get("CXX", "").split()[:1]
    compilers = chosen or ["c++", "g++", "clang++"]
    if not any(map(shutil.which, compilers)):
        raise NotInstalled(
            f"No C++ compiler was found. Looked for: {', '.join(compilers)}. {_COMPILERS}."
        )
    if shutil.which("make") is None:
        raise NotInstalled(f"make was not found. Looked in: PATH. {_COMPILERS}.")
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise NotInstalled(
            f"Python's headers are not installed. Looked in: {headers}. apt-get install "
            f"python{sysconfig.get_python_version()}-dev, or your system's equal."
        )


def _cmake() -> Path:
    """PyPI's cmake, else the one on PATH."""
    found = _pypi_cmake() or shutil.which("cmake")
    if found is None:
        raise _lacking("no cmake")
    told = subprocess.run([str(found), "--version"], capture_output=True, text=True).stdout
    version = re.search(r"(\d+)\.(\d+)", told)
    if version is None or tuple(map(int, version.groups())) < _OLDEST_CMAKE:
        raise _lacking(f"{told.partition(chr(10))[0] or found}, where 3.19 or later is needed")
    return Path(found)


def _pypi_cmake() -> Path | None:
    try:
        path = Path(str(metadata.distribution("cmake").locate_file("cmake/data/bin/cmake")))
    except metadata.PackageNotFoundError:
        return None
    return path if path.exists() else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _lacking(what: str) -> NotInstalled:
    return NotInstalled(f"The Horovod build lacks a tool. Received: {what}. Install: {EXTRA}")
