"""`dream build-horovod`: the Horovod ring for the installed frameworks, built once and cached.

The wheel is bound to Python, torch and TensorFlow, so it is kept by those: an environment that
matches takes it from the cache in seconds, and one that has it already is left alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from dream._errors import ConfigurationError, DreamError, NotInstalled
from dream.adapters.horovod import _cache, _tools
from dream.adapters.horovod._compile import compile_wheel, progress
from dream.adapters.horovod._sdist import excerpt
from dream.adapters.horovod._status import BuildKey, BuildStatus, present_key, require, status

__all__ = ["BuildStatus", "build", "main", "require", "status"]


def main(argv: list[str]) -> int:
    """The command; returns its exit code. Errors are told on stderr."""
    options = _parser().parse_args(argv)
    try:
        if options.print_key:
            print(_key())
        else:
            build(force=options.force, install=not options.no_install, jobs=options.jobs)
    except DreamError as error:
        print(f"dream build-horovod: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dream build-horovod: stopped; nothing was installed.", file=sys.stderr)
        return 130
    return 0


def build(*, force: bool = False, install: bool = True, jobs: int | None = None) -> None:
    """Make the ring of the present frameworks available; says what it does and for how long.

    Raises ConfigurationError with no framework to build for, NotInstalled where a tool is missing
    or the build fails.
    """
    key = _key()
    if install and not force and _already():
        return
    start = time.monotonic()
    _tools.check_python()
    with _cache.lock(_cache.root() / str(key), _waiting):
        if install and not force and _already():  # the build that we waited for was for us
            return
        wheel = _obtain(key, force, jobs)
        if install:
            _install(wheel)
    done = "installed" if install else "built"
    print(f"The Horovod ring is {done}: {wheel.name}, {time.monotonic() - start:.1f} s.")
    if not install:
        print(wheel)


def _key() -> BuildKey:
    key = present_key()
    if key.torch is None and key.tensorflow is None:
        raise ConfigurationError(
            "There is no framework to build the Horovod ring for. Received: neither torch nor "
            'tensorflow installed. Install one or both first: pip install "dream-systems[torch]" '
            '"dream-systems[tensorflow]"'
        )
    return key


def _already() -> bool:
    now = status()
    if now.matches:
        print(f"The Horovod ring is installed already, {now.reason}")
    return now.matches


def _waiting() -> None:
    print("Another build of the same ring is running; waiting for it.", flush=True)


def _obtain(key: BuildKey, force: bool, jobs: int | None) -> Path:
    cached = None if force else _cache.find(_cache.root() / str(key))
    if cached:
        print(f"Built before; taken from {cached.parent}.", flush=True)
        return cached
    print(f"Building the Horovod ring, {key}: about 3 minutes on 2 cores.", flush=True)
    shown = progress()
    try:
        return compile_wheel(key, _cache.root(), shown, jobs)
    finally:
        shown.close()


def _install(wheel: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index"]
    command += ["--force-reinstall", "--no-warn-script-location", str(wheel)]
    told = subprocess.run(command, cwd=wheel.parent, text=True, capture_output=True)
    if told.returncode:
        raise NotInstalled(
            f"pip could not install the built ring. Received:\n\n"
            f"{excerpt((told.stdout + told.stderr).splitlines())}\n\nThe wheel: {wheel}"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dream build-horovod",
        description="Build the Horovod ring for the installed frameworks, once, and install it.",
    )
    parser.add_argument("--force", action="store_true", help="build again, whatever is there")
    parser.add_argument("--no-install", action="store_true", help="only build and cache")
    parser.add_argument("--print-key", action="store_true", help="print the cache key and stop")
    parser.add_argument("--jobs", type=_positive, help="compilers at once (default: as fits)")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, received {value}")
    return value
