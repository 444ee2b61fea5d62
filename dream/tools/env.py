"""`dream env`: say what works on this machine, each backend tried, and what a bug report needs.

Two ranks add something up over every backend that may work here, one job a framework.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import IO, Any

from rich.table import Table
from rich.text import Text

import dream
from dream import cluster
from dream._errors import DreamError
from dream.files.whole import write_whole
from dream.launch.ending import explain
from dream.launch.guard import temporary_folder
from dream.launch.joined.threads import cores
from dream.shared_memory import status
from dream.strategies import registry
from dream.strategies import spec as specs
from dream.strategies.spec import FRAMEWORKS, Framework
from dream.tools import jobs, support, tables

_ELEMENTS = 1 << 18


def add_up(folder: Path) -> None:
    """Rank 0 leaves a file for each that works, with the seconds of a sum of 1 MiB."""
    import numpy as np

    asked = jobs.read_asked(folder)
    framework, rank = asked["framework"], cluster.detect().rank
    for name in asked["names"]:
        ranks = dream.communicator(name, framework=framework)
        mine = np.full(_ELEMENTS, rank + 1, np.float32)
        tensor = registry.load(registry.ON_GPU[framework])(mine) if name == "nccl" else mine
        ranks.all_reduce(tensor, "sum")
        ranks.barrier()
        start = perf_counter()
        total = ranks.all_reduce(tensor, "sum")
        took = perf_counter() - start
        wanted = sum(range(1, ranks.world_size + 1))
        if not bool((total == wanted).all() if name != "nccl" else float(total[0]) == wanted):
            raise AssertionError(f"{name} adds up to {float(total[0])}, not to {wanted}")
        if rank == 0:
            write_whole(folder / name, partial(_told, json.dumps(took)))


def _told(text: str, file: IO[bytes]) -> None:
    file.write(text.encode())


_RANKS = 2


@dataclass(frozen=True, slots=True)
class Try:
    """Whether something of this machine works, as tried.

    works: None where it was not tried. said: why not, or how long a sum took.
    """

    works: bool | None
    said: str


Tries = Mapping[Framework, Mapping[str, Try]]


def look() -> Tries:
    """Look what stands in the way of each, nothing tried."""
    return {
        framework: {
            name: Try(False, why) if (why := _obstacle(framework, name)) else Try(None, "")
            for name in _names(framework)
        }
        for framework in FRAMEWORKS
    }


def try_all(seconds: float) -> Tries:
    """Try each that nothing stands in the way of, all frameworks at a time. seconds: for a job."""
    found = {framework: dict(tries) for framework, tries in look().items()}
    jobs = [(f, names) for f, tries in found.items() for names in _jobs(tries)]
    with ThreadPoolExecutor(max_workers=max(1, len(jobs))) as pool:
        done = pool.map(lambda job: _tried(job[0], job[1], seconds), jobs)
        for (framework, _), results in zip(jobs, done, strict=True):
            found[framework] |= results
    return found


def _names(framework: Framework) -> tuple[str, ...]:
    return specs.find("mirrored").reductions[framework]


def _obstacle(framework: Framework, name: str) -> str:
    gpus = support.gpus()
    if name == "nccl" and 0 < gpus < _RANKS:
        return f"needs a GPU for each of {_RANKS} ranks, and here is {gpus}"
    return support.obstacle(specs.find("mirrored"), framework, name)


def _jobs(tries: Mapping[str, Try]) -> Iterator[list[str]]:
    """NCCL has ranks of its own: torch's process group is made once, with it or without."""
    open_ = [name for name, each in tries.items() if each.works is None]
    yield from ([name] for name in open_ if name == "nccl")
    rest = [name for name in open_ if name != "nccl"]
    if rest:
        yield rest


def _tried(framework: Framework, names: Sequence[str], seconds: float) -> dict[str, Try]:
    """One job after the other until each had its turn: one that fails takes its ranks along."""
    found: dict[str, Try] = {}
    left = list(names)
    while left:
        with temporary_folder("dream-env-") as folder:
            results = _run(framework, left, folder, seconds)
        found |= results
        left = [name for name in left if name not in found]
    return found


def _run(
    framework: Framework, names: Sequence[str], folder: Path, seconds: float
) -> dict[str, Try]:
    ended = jobs.run(
        __name__,
        folder,
        {"framework": framework, "names": names},
        n=_RANKS,
        frameworks=[framework],
        timeout=seconds,
    )
    found: dict[str, Try] = {}
    for name in names:
        try:
            took = json.loads((folder / name).read_text())
        except FileNotFoundError:
            break
        found[name] = Try(True, f"1 MiB in {took * 1e3:.1f} ms")
    if ended.exit_code != 0 and len(found) < len(names):
        why = f"no answer within {seconds:g} s" if ended.lost else explain(ended)
        found[names[len(found)]] = Try(False, why.strip().splitlines()[-1].strip())
    for name in names if ended.exit_code == 0 else ():
        found.setdefault(name, Try(False, "its ranks ended without a word"))
    return found


Facts = dict[str, Any]


def facts() -> Facts:
    """Versions, devices, what was built, and the place among the ranks."""
    ring = support.horovod_status()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": cores(),
        "memory_gib": _memory_gib(),
        "gpus": _gpus(),
        "versions": support.versions(),
        "horovod": {
            "usable": {name: bool(ring.serves(name)) for name in FRAMEWORKS},
            "why": ring.reason,
            "build": ring.key,
        },
        "shared_memory": _core(),
        "cluster": _cluster(),
    }


def _cluster() -> Facts:
    """Return where this process stands, and which variables say so."""
    variables = cluster.variables()
    try:
        place = cluster.detect(asks=False)  # by itself: this process trains nothing
    except DreamError as error:
        return {"launcher": "cannot be told", "why": str(error), "variables": variables}
    return {
        "launcher": place.source,
        "rank": place.rank,
        "world_size": place.world_size,
        "hosts": list(place.hosts),
        "variables": variables,
    }


def _core() -> Facts:
    found = status()
    return {"core": found.path.name if found.path else None, "why": found.why or None}


def _gpus() -> list[str]:
    """Return their names, as the driver shows them."""
    found = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return [_after("Model:", file.read_text()) or "NVIDIA" for file in found]


def _processor() -> str:
    try:
        return _after("model name", Path("/proc/cpuinfo").read_text()) or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def _after(label: str, text: str) -> str:
    line = next((line for line in text.splitlines() if line.startswith(label)), "")
    return line.partition(":")[2].strip()


def _memory_gib() -> float:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return round(pages / 2**30, 1)


def document(facts: Facts, tries: Tries) -> Facts:
    """For programs: works is null where it was not tried."""
    reductions = {
        framework: {name: {"works": t.works, "said": t.said} for name, t in each.items()}
        for framework, each in tries.items()
    }
    return {**facts, "reductions": reductions}


def show(facts: Facts, tries: Tries) -> None:
    """Print everything; what is to be pasted stands in whole lines."""
    console = tables.screen()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(facts):
        table.add_row(Text(name), Text(value))
    for framework, each in tries.items():
        for name, found in each.items():
            style = {True: "green", False: "red", None: "dim"}[found.works]
            table.add_row(Text(f"{framework} {name}"), Text(_word(found), style=style))
    console.print(table)
    console.print("\nFor a bug report, paste this:\n")
    for line in pasted(facts, tries):
        console.print(Text(line), soft_wrap=True)


def pasted(facts: Facts, tries: Tries) -> Iterator[str]:
    """Say it in few lines of Markdown, without the home folder's name."""
    versions = facts["versions"]
    home = str(Path.home())
    yield "```"
    yield ", ".join(f"{name} {text}" for name, text in versions.items() if text)
    yield f"Python {facts['python']} on {facts['platform']}"
    gpus = ", ".join(facts["gpus"]) or "no GPU"
    yield f"{facts['cores']} cores ({facts['processor']}), {facts['memory_gib']} GiB, {gpus}"
    yield f"Horovod: {facts['horovod']['why']}".replace(home, "~")
    for framework, each in tries.items():
        words = "; ".join(f"{name} {_word(found)}" for name, found in each.items())
        yield f"{framework}: {words}".replace(home, "~")
    place = facts["cluster"]
    yield f"launcher: {place['launcher']}, variables: {', '.join(place['variables']) or 'none'}"
    if "why" in place:
        yield place["why"]
    yield "```"


def _word(found: Try) -> str:
    if found.works is None:
        return "not tried"
    return f"works ({found.said})" if found.works else f"no: {found.said}"


def _rows(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield what was found without trying anything."""
    yield "system", f"Python {facts['python']} on {facts['platform']}"
    yield "processor", f"{facts['processor']}, {facts['cores']} cores that we may use"
    yield "memory", f"{facts['memory_gib']} GiB"
    yield "GPUs", ", ".join(facts["gpus"]) or "none"
    for name, version in facts["versions"].items():
        yield name, version or "not installed"
    yield "Horovod's build", facts["horovod"]["why"]
    core = facts["shared_memory"]
    yield "shared memory's core", core["core"] or core["why"] or "none"
    yield "launcher", _launcher(facts["cluster"])
    for name, value in facts["cluster"]["variables"].items():
        yield f"  {name}", value


def _launcher(place: Mapping[str, Any]) -> str:
    if "why" in place:
        return f"{place['launcher']}: {place['why']}"
    if place["world_size"] == 1 and not place["variables"]:
        return "none: this process is alone"
    return f"{place['launcher']}: rank {place['rank']} of {place['world_size']}, by"


if __name__ == "__main__":
    add_up(Path(sys.argv[1]))
