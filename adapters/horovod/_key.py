"""What a built ring is bound to, written so that it can stand as the wheel's local version.

`horovod 0.28.1+dream.r1c0ffee123.torch2.13.0.cpu.tensorflow2.21.0`: `pip list` shows it, and
reading it back takes no framework and no file of our own.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dream.adapters.horovod import _recipe

FRAMEWORKS = {
    "torch": ("torch",),
    "tensorflow": (
        "tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tensorflow-macos",
        "tensorflow-rocm", "intel-tensorflow", "tf-nightly", "tf-nightly-cpu",
    ),
}  # fmt: skip
_LOCAL = re.compile(
    r"dream\.(r[0-9a-f]+)(?:\.torch([0-9][0-9a-z.]*?))?(?:\.tensorflow([0-9a-z.]+))?"
)


@dataclass(frozen=True, slots=True)
class BuildKey:
    """What a build is bound to.

    base: hash of Python's ABI, the platform and the recipe.
    torch, tensorflow: the versions built against, in the letters a local version may hold.
    """

    base: str
    torch: str | None = None
    tensorflow: str | None = None

    def __str__(self) -> str:
        named = {"torch": self.torch, "tensorflow": self.tensorflow}
        built = [f"{name}{version}" for name, version in named.items() if version]
        return ".".join(["dream", self.base, *built])

    def version_of(self, framework: str) -> str | None:
        return {"torch": self.torch, "tensorflow": self.tensorflow}[framework]

    def serves(self, framework: str, present: BuildKey) -> bool:
        """Whether a ring built under this key works with the present build of a framework."""
        version = present.version_of(framework)
        return version is not None and (self.base, self.version_of(framework)) == (
            present.base, version,
        )  # fmt: skip


def parse(version: str) -> BuildKey | None:
    """The key in an installed version; None where somebody else built it."""
    match = _LOCAL.fullmatch(version.partition("+")[2])
    return BuildKey(*match.groups()) if match else None


def present_key() -> BuildKey:
    """The key of a ring built here and now; no framework is imported."""
    return BuildKey(_base(), *(_version(names) for names in FRAMEWORKS.values()))


def _version(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return local_spelling(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    return None


def local_spelling(version: str) -> str:
    """A version in the letters of a local version: `2.13.0+cpu` is `2.13.0.cpu`."""
    parts = [part for part in re.split(r"[^a-z0-9]+", version.lower()) if part]
    return ".".join(str(int(part)) if part.isdigit() else part for part in parts)


def _base() -> str:
    bound_to = [str(sysconfig.get_config_var("SOABI")), sysconfig.get_platform(), _libc(), _simd()]
    text = "\0".join([*bound_to, _recipe.digest()])
    return "r" + hashlib.sha256(text.encode()).hexdigest()[:10]


def _libc() -> str:
    """A cache shared by several images must not hand a newer glibc's wheel to an older one."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, AttributeError, OSError):
        return ""


def _simd() -> str:
    """The instructions that Horovod builds in where the machine has them."""
    try:
        with Path("/proc/cpuinfo").open() as file:
            flags = next((line.split() for line in file if line.startswith("flags")), [])
    except OSError:
        return ""
    return " ".join(sorted({"f16c", "avx", "fma"}.intersection(flags)))
