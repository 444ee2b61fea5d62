"""The unmodified sdist: from the cache, else from PyPI through pip; verified before it is run."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

from dream._errors import NotInstalled
from dream.adapters.horovod import _cache
from dream.adapters.horovod._failure import excerpt
from dream.adapters.horovod._recipe import EXTRA, SDIST, SHA256, VERSION


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
