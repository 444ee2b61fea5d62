"""What is built, and from what: our cmake files, the switches, and the unmodified sdist, from the
cache or from PyPI through pip, verified before it is run; and of a long log the few lines that say
what went wrong.

Source: shared facts measured on Horovod 0.28.1, its last release. The sdist itself stays as PyPI
has it; `recipe/` says in cmake's own words what today's frameworks need.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from dream._errors import NotInstalled
from dream.adapters.horovod import _cache

VERSION = "0.28.1"
SDIST = f"horovod-{VERSION}.tar.gz"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
FOLDER = Path(__file__).parent / "recipe"
SWITCHES = {
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITHOUT_NVTX": "1",
}
EXTRA = 'pip install "dream-systems[horovod]"'


def digest() -> str:
    """Hash of everything that this project puts into a build."""
    parts = [SHA256, repr(sorted(SWITCHES.items()))]
    parts += [path.read_text() for path in sorted(FOLDER.glob("*.cmake"))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def framework_switches(torch: bool, tensorflow: bool) -> dict[str, str]:
    """Which frontends to build.

    A WITHOUT that is "0" is not idle: cmake reads it as no, and Horovod's setup.py reads any value
    of HOROVOD_WITHOUT_PYTORCH as leave to drop its stale dependency on cffi.
    """
    switches = {}
    for name, wanted in (("PYTORCH", torch), ("TENSORFLOW", tensorflow)):
        switches[f"HOROVOD_WITH_{name}"] = "1" if wanted else "0"
        switches[f"HOROVOD_WITHOUT_{name}"] = "0" if wanted else "1"
    return switches


_ERROR = re.compile(
    r"(?<![\w-])error: (?!subprocess-exited)|CMake Error|undefined reference to"
    r"|No space left on device|ModuleNotFoundError|DO NOT MATCH THE HASHES|ERROR: "
)
_COMMAND = re.compile(r"^\s*(cd \S+ && |/\S*/(c\+\+|g\+\+|clang\+\+|cmake|ld) )")
_KILLED = re.compile(r"Killed signal|signal 9|cannot allocate memory", re.IGNORECASE)
_WIDTH = 240


def excerpt(lines: list[str], errors: int = 3, before: int = 2, after: int = 4) -> str:
    """The first errors with the lines around them; the tail where nothing looks like an error."""
    told = [line.rstrip()[:_WIDTH] for line in lines if line.strip() and not _COMMAND.match(line)]
    hits = [index for index, line in enumerate(told) if _ERROR.search(line)][:errors]
    if not hits:
        return "\n".join(told[-15:])
    shown = sorted(
        {near for hit in hits for near in range(hit - before, hit + after + 1)}
        & set(range(len(told)))
    )
    return "\n".join(told[index] for index in shown)


def failed(what: str, log: Path, lines: list[str]) -> NotInstalled:
    """The error to raise when a step of the build did not end well."""
    advice = f"The whole log: {log}"
    if any(_KILLED.search(line) for line in lines):
        advice = f"The compiler ran out of memory: pass --jobs 1. {advice}"
    return NotInstalled(f"{what} failed. Received:\n\n{excerpt(lines)}\n\n{advice}")


def unpack(cache: Path, into: Path) -> Path:
    """Unpack the sdist in a folder; returns its top folder. Needs no network once cached."""
    with tarfile.open(_obtain(cache / "sdist", into)) as archive:
        archive.extractall(into, filter="data")
    return into / f"horovod-{VERSION}"


def _obtain(folder: Path, scratch: Path) -> Path:
    cached = folder / SDIST
    if cached.exists() and _hash(cached) == SHA256:
        return cached
    return _cache.place(_download(folder, scratch), folder)


def _download(folder: Path, scratch: Path) -> Path:
    """pip runs an sdist's setup.py to download it, so it is pip that must check the hash first."""
    requirement = scratch / "requirement.txt"
    requirement.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-binary", ":all:", "--no-deps"]
    command += ["--no-build-isolation", "--retries", "2", "--require-hashes"]
    command += ["-r", str(requirement), "-d", str(scratch)]
    told = subprocess.run(command, capture_output=True, text=True, cwd=scratch)
    if told.returncode:
        raise NotInstalled(
            f"{SDIST} could not be downloaded. Received from pip:\n\n"
            f"{excerpt((told.stdout + told.stderr).splitlines())}\n\n"
            f"What its metadata needs comes with: {EXTRA}. Without a network, put the file from "
            f"PyPI in {folder}."
        )
    return scratch / SDIST


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
