"""Compile the ring, and show where the build stands: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TextIO

from dream.adapters.horovod import _cache, _sdist, _tools
from dream.adapters.horovod._sdist import failed
from dream.adapters.horovod._status import BuildKey
from dream.cluster.settings import inherited


class BuildProgress(ABC):
    """What a build tells while it runs."""

    @abstractmethod
    def phase(self, name: str) -> None:
        """A new phase begins."""

    @abstractmethod
    def percent(self, value: int) -> None:
        """How much of the compiling is done."""

    @abstractmethod
    def close(self) -> None:
        """Nothing more comes."""


class PlainProgress(BuildProgress):
    """Lines for logs: each phase, then every tenth percent."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._phase = ""
        self._said = 0

    def phase(self, name: str) -> None:
        self._phase, self._said = name, 0
        self._say(name)

    def percent(self, value: int) -> None:
        if value >= self._said + 10:
            self._said = value
            self._say(f"{self._phase} {value} %")

    def close(self) -> None:
        pass

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:4.0f} s] {text}", flush=True)


class BarProgress(BuildProgress):
    """One line that moves."""

    def __init__(self) -> None:
        from rich import progress

        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(),
        )
        self._task = self._bar.add_task("", total=100)
        self._bar.start()

    def phase(self, name: str) -> None:
        self._bar.update(self._task, description=name)

    def percent(self, value: int) -> None:
        self._bar.update(self._task, completed=value)

    def close(self) -> None:
        self._bar.stop()


def progress() -> BuildProgress:
    """The display that fits where stdout goes."""
    return BarProgress() if sys.stdout.isatty() else PlainProgress()


_PERCENT = re.compile(r"^\s*\[\s*(\d+)%\]")
_IMPORTS = {"torch": "horovod.torch.mpi_lib_v2", "tensorflow": "horovod.tensorflow.mpi_ops"}
# Settings of the caller's that would choose another build: an outer make's job server, another
# generator, another toolchain, oneCCL, and every switch or rank variable of Horovod's own.
_DROPPED = re.compile(r"HOROVOD_.*|MAKE.*|MFLAGS|CMAKE_.*|CCL_ROOT|PIP_(NO_)?BUILD_ISOLATION")


def compile_wheel(
    key: BuildKey, cache: Path, progress: BuildProgress, jobs: int | None = None
) -> Path:
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
        **_sdist.SWITCHES,
        **_sdist.framework_switches(key.torch is not None, key.tensorflow is not None),
        "CMAKE_TOOLCHAIN_FILE": str(_sdist.FOLDER / "toolchain.cmake"),
        "HOROVOD_CMAKE": str(cmake),
        "HOROVOD_LOCAL_VERSION": str(key),
        "LC_ALL": "C.UTF-8",  # the compiler's errors are looked for in English
        "MAKEFLAGS": f"-j{jobs}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def follow(lines: Iterable[str], log: TextIO, progress: BuildProgress) -> list[str]:
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
    source: Path, into: Path, environ: dict[str, str], log: Path, progress: BuildProgress
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
