"""The sdist made into a wheel, in a folder that is thrown away."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TextIO

from dream.adapters.horovod import _cache, _recipe, _sdist, _tools
from dream.adapters.horovod._failure import failed
from dream.adapters.horovod._key import BuildKey
from dream.adapters.horovod._progress import Progress
from dream.cluster.settings import inherited

_PERCENT = re.compile(r"^\s*\[\s*(\d+)%\]")
_IMPORTS = {"torch": "horovod.torch.mpi_lib_v2", "tensorflow": "horovod.tensorflow.mpi_ops"}
# Settings of the caller's that would choose another build: an outer make's job server, another
# generator, another toolchain, oneCCL, and every switch or rank variable of Horovod's own.
_DROPPED = re.compile(r"HOROVOD_.*|MAKE.*|MFLAGS|CMAKE_.*|CCL_ROOT|PIP_(NO_)?BUILD_ISOLATION")


def compile_wheel(key: BuildKey, cache: Path, progress: Progress, jobs: int | None = None) -> Path:
    """Build the wheel of a key, try it, put it in the cache; returns where it lies."""
    cmake = _tools.check_build()
    folder = cache / str(key)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dream-horovod-") as name:
        scratch = Path(name)
        progress.phase("fetching")
        source = _sdist.unpack(cache, scratch)
        progress.phase("configuring")
        environ = environment(inherited(), key, cmake, jobs or _tools.jobs())
        wheel = _pip_wheel(source, scratch / "wheel", environ, folder / "build.log", progress)
        progress.phase("trying")
        _try(wheel, key, scratch / "tried", folder / "try.log")
        return _cache.place(wheel, folder)


def environment(
    environ: Mapping[str, str], key: BuildKey, cmake: Path, jobs: int
) -> dict[str, str]:
    """The caller's environment, less what would choose another build, plus what chooses ours."""
    kept = {name: value for name, value in environ.items() if not _DROPPED.fullmatch(name)}
    return {
        **kept,
        **_recipe.SWITCHES,
        **_recipe.framework_switches(key.torch is not None, key.tensorflow is not None),
        "CMAKE_TOOLCHAIN_FILE": str(_recipe.FOLDER / "toolchain.cmake"),
        "HOROVOD_CMAKE": str(cmake),
        "HOROVOD_LOCAL_VERSION": str(key),
        "LC_ALL": "C.UTF-8",  # the compiler's errors are looked for in English
        "MAKEFLAGS": f"-j{jobs}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def follow(lines: Iterable[str], log: TextIO, progress: Progress) -> list[str]:
    """Write each line to the log and show the percent that make tells; returns the lines."""
    kept: list[str] = []
    compiling = False
    for line in lines:
        kept.append(line)
        log.write(line)
        told = _PERCENT.match(line)
        if told:
            if not compiling:
                progress.phase("compiling")
            compiling = True
            progress.percent(int(told[1]))
    return kept


def _pip_wheel(
    source: Path, into: Path, environ: dict[str, str], log: Path, progress: Progress
) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--use-pep517", "--no-deps"]
    command += ["--no-build-isolation", "--no-cache-dir", "-w", str(into), str(source)]
    process = subprocess.Popen(
        command, env=environ, cwd=source.parent, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None  # it was asked for
    with process, log.open("w") as file:
        try:
            lines = follow(process.stdout, file, progress)
        except BaseException:
            process.terminate()  # its make dies writing to the closed pipe
            raise
    wheel = _cache.find(into)
    if process.returncode or wheel is None:
        raise failed("The Horovod build", log, lines)
    return wheel


def _try(wheel: Path, key: BuildKey, into: Path, log: Path) -> None:
    """Import what was built, each frontend in its own process: a linker leaves much for then."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into)
    path = os.pathsep.join(filter(None, [str(into), inherited().get("PYTHONPATH")]))
    environ = {**inherited(), "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    for framework, module in _IMPORTS.items():
        if key.version_of(framework) is None:
            continue
        told = subprocess.run(
            [sys.executable, "-c", f"import {framework}, {module}"],
            env=environ, cwd=into, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if told.returncode:
            log.write_text(told.stdout)
            raise failed(f"Importing {module} from the built wheel", log, told.stdout.splitlines())
