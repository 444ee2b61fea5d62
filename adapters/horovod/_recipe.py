"""What is built, and from what: the pinned sdist, our cmake files, the switches.

Source: shared facts measured on Horovod 0.28.1, its last release. The sdist itself stays as PyPI
has it; `recipe/` says in cmake's own words what today's frameworks need.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

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
