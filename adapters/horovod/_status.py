"""Whether the ring is there and fits; no framework is imported to find out."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dream._errors import NotInstalled
from dream.adapters.horovod._key import FRAMEWORKS, BuildKey, parse, present_key

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
