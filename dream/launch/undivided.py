"""Said at a script's good end: nothing in it divides its work, so each rank has run all of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Event

from dream import cluster
from dream._libraries import ENTRANCES
from dream._patches import is_pythons
from dream.launch.forks.foresight import imports_dream

divided = Event()
"""Set where this process takes a rank's part: by a block, a communicator, files made once."""

_FRAMEWORKS = ("torch", "tensorflow", "keras")
_DIVIDES = re.compile(
    r"distributed|\bdistribute\b|keras\.distribution|accelerate|horovod|mpi4py|local_rank|RANK\b"
    "|WORLD_SIZE|TF_CONFIG"
)
"""What a script has among its own words that is to divide its work by itself."""
_DREAM, _MOST = Path(__file__).parents[1], 1 << 20
_SAID = (
    "dream: the script entered no `dream.strategy` block, so each of the {ranks} ranks ran all of "
    'it by itself. Put what is made and what trains into `with dream.strategy("mirrored"):`{asked}'
)
_ASKED = "; --strategy names the strategy of a block, and makes none"


def tell(kind: str, name: str) -> None:
    """Say so, on rank 0, once the script has come to its good end. kind, name: "script" and its
    whole path, or "module" and its name."""
    if divided.is_set() or not any(each in sys.modules for each in _FRAMEWORKS):
        return
    place, asked = cluster.detect(asks=False), cluster.requested_strategy()
    told = asked and not imports_dream(("", kind, name))  # by the launcher, before it began
    if place.rank == 0 and not (place.alone or told or _divides_by_itself(_file_of(kind, name))):
        words = _SAID.format(ranks=place.world_size, asked=_ASKED if asked else "")
        print(words, file=sys.stderr, flush=True)


def _file_of(kind: str, name: str) -> Path:
    if kind == "script":
        return Path(name)
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{name}.__main__")
    return Path(str(spec and spec.origin))


def _divides_by_itself(script: Path) -> bool:
    """Whether the script calls a library that distributes, or may do so in its own words."""
    libraries = {e.module for e in ENTRANCES} - {"accelerate.accelerator"}  # models import it too
    if any(name in sys.modules for name in libraries if not name.startswith("torch.")):
        return True
    return any(_DIVIDES.search(source) for source in _sources(script))


def _sources(script: Path) -> Iterator[str]:
    """Those of the script and of modules beside it: of no package that was installed."""
    yield script.read_text(errors="replace")
    for name, module in [*sys.modules.items()]:
        file = Path(str(getattr(module, "__file__", None)))
        installed = {"site-packages", "dist-packages"}.intersection(file.parts)
        if installed or is_pythons(name, module) or file.is_relative_to(_DREAM):
            continue
        with suppress(OSError):
            if file.suffix == ".py" and file.stat().st_size < _MOST:
                yield file.read_text(errors="replace")
