"""Find out whether the ring is there and fits, without importing a framework: by the key that a
built wheel bears as its local version.

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

from dream._errors import NotInstalled
from dream.adapters.horovod import _sdist

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
    text = "\0".join([*bound_to, _sdist.digest()])
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


_LIBRARIES = {"torch": "torch/mpi_lib_v2*", "tensorflow": "tensorflow/mpi_lib*"}


@dataclass(frozen=True, slots=True)
class BuildStatus:
    """What `dream env` and `dream strategies` show of the ring.

    installed: some Horovod is installed, whoever built it.
    matches: it is ours and serves every framework that is installed.
    torch, tensorflow: it works with the installed build of that framework.
    key: what would be built here and now.
    reason: one sentence on the above.
    """

    installed: bool
    matches: bool
    torch: bool
    tensorflow: bool
    key: str
    reason: str

    def serves(self, framework: str) -> bool:
        return {"torch": self.torch, "tensorflow": self.tensorflow}[framework]


def status() -> BuildStatus:
    """Compare the installed ring with the installed frameworks."""
    present = present_key()
    wanted = [name for name in FRAMEWORKS if present.version_of(name)]
    try:
        ring = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        return BuildStatus(False, False, False, False, str(present), "Horovod is not installed.")
    served = _served(ring, present)
    missing = [name for name in wanted if name not in served]
    return BuildStatus(
        installed=True,
        matches=bool(wanted) and not missing,
        torch="torch" in served,
        tensorflow="tensorflow" in served,
        key=str(present),
        reason=_reason(ring.version, present, wanted, missing),
    )


def require(framework: str | None = None) -> None:
    """Raise NotInstalled unless the ring works with a framework, or with every installed one."""
    now = status()
    if not (now.matches if framework is None else now.serves(framework)):
        raise NotInstalled(
            f"The Horovod ring cannot be used. Received: {now.reason} Build it for the present "
            "frameworks: dream build-horovod"
        )


def _served(ring: metadata.Distribution, present: BuildKey) -> set[str]:
    built = parse(ring.version)
    if built is None:
        return set()
    folder = Path(str(ring.locate_file("horovod")))
    return {
        name
        for name, library in _LIBRARIES.items()
        if built.serves(name, present) and any(folder.glob(library))
    }


def _reason(version: str, present: BuildKey, wanted: list[str], missing: list[str]) -> str:
    here = " and ".join(f"{name} {present.version_of(name)}" for name in wanted)
    built = parse(version)
    if not wanted:
        return "neither PyTorch nor TensorFlow is installed."
    if built is None:
        return f"horovod {version} was not built by dream (its stall inspector cannot fire)."
    if not missing:
        return f"built for {here}."
    if built.base != present.base:
        return f"horovod {version} was built by another recipe or for another Python or machine."
    return f"horovod {version} was built for other frameworks; here: {here}."
