"""Two ranks that add something up over every backend that may work here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dream import _here, _spec
from dream._spec import FRAMEWORKS, Framework
from dream.launch import start
from dream.launch.command import explain
from dream.launch.guard import temporary_folder
from dream.launch.job import Job
from dream.tools.env import worker

_RANKS = 2


@dataclass(frozen=True, slots=True)
class Try:
    """works: None where it was not tried. said: why not, or how long a sum took."""

    works: bool | None
    said: str


Tries = Mapping[Framework, Mapping[str, Try]]


def look() -> Tries:
    """What stands in the way of each, nothing tried."""
    return {
        framework: {
            name: Try(False, why) if (why := _obstacle(framework, name)) else Try(None, "")
            for name in _names(framework)
        }
        for framework in FRAMEWORKS
    }


def try_all(seconds: float) -> Tries:
    """Each that nothing stands in the way of; all frameworks at a time. seconds: for one job."""
    found = {framework: dict(tries) for framework, tries in look().items()}
    jobs = [(f, names) for f, tries in found.items() for names in _jobs(tries)]
    with ThreadPoolExecutor(max_workers=max(1, len(jobs))) as pool:
        done = pool.map(lambda job: _tried(job[0], job[1], seconds), jobs)
        for (framework, _), results in zip(jobs, done, strict=True):
            found[framework] |= results
    return found


def _names(framework: Framework) -> tuple[str, ...]:
    return _spec.find("mirrored").reductions[framework]


def _obstacle(framework: Framework, name: str) -> str:
    gpus = _here.gpus()
    if name == "nccl" and 0 < gpus < _RANKS:
        return f"needs a GPU for each of {_RANKS} ranks, and here is {gpus}"
    return _here.obstacle(_spec.find("mirrored"), framework, name)


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
    ended = start.run(
        Job(
            command=("module", worker.__name__, str(folder), framework, *names),
            n=_RANKS,
            frameworks=(framework,),
            show="none",
            timeout=seconds,
        )
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
