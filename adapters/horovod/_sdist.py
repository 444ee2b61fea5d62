"""Get the unmodified sdist, from the cache or from PyPI through pip, verified before it is run; and
tell of a long log the few lines that say what went wrong."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from dream._errors import NotInstalled
from dream.adapters.horovod import _cache
from dream.adapters.horovod._recipe import EXTRA, SDIST, SHA256, VERSION

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
        advice = f"The compiler ran out of memory: give --jobs 1. {advice}"
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
