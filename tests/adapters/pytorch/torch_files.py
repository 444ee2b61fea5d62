"""What the ranks of one job save and load, each scene in a folder of its own. Where one rank is to
come first, the other waits for a file it leaves."""

from __future__ import annotations

import logging
import os
import pickle
import resource
import stat
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch_files_model import Keeping

import dream

SECONDS = 120.0
Figures = dict[str, Any]


class Slow:
    """Takes its time to be saved."""

    def __reduce__(self) -> Any:
        time.sleep(0.4)
        return OrderedDict, ()


def run(folder: Path) -> Figures:
    said: list[str] = []
    heard = logging.Handler(logging.WARNING)
    heard.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dream").addHandler(heard)
    with dream.strategy("mirrored") as strategy:
        rank, barrier = strategy.topology.rank, strategy.communicator.barrier
        found: Figures = {}
        scenes: tuple[Callable[[Path, int], Any], ...] = (
            own_paths, first_come, loads, guarded, links, modes, devices, no_room, pickles, others,
        )  # fmt: skip
        for scene in scenes:
            place = folder / scene.__name__
            place.mkdir(exist_ok=True)
            barrier()
            found[scene.__name__] = scene(place, rank)
            barrier()
            found[f"left by {scene.__name__}"] = [p.name for p in place.glob(".*")]
    return {**found, "said": said}


def await_file(path: Path) -> None:
    limit = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < limit, path
        time.sleep(0.01)


def own_paths(folder: Path, rank: int) -> Any:
    """A state of each rank's own, saved twice and read back."""
    path = folder / f"rank{rank}.pt"
    for version in (1, 2):
        torch.save({"rank": rank, "version": version}, path)
    return torch.load(path)


def first_come(folder: Path, rank: int) -> None:
    """One path, with other content on each rank: once rank 0 comes first, once the other does."""
    for late in (1, 0):
        path, gone = folder / f"late{late}.pt", folder / f"saved-but-by-{late}"
        if rank == late:
            await_file(gone)
        torch.save({"rank": rank}, path)
        gone.touch()
        await_file(gone)


def loads(folder: Path, rank: int) -> list[int]:
    """Each version is read right after it was saved, while rank 0 takes its time."""
    found = []
    for version in range(3):
        torch.save([version, Slow() if rank == 0 else {}], folder / "state.pt")
        found.append(torch.load(folder / "state.pt")[0])
    return found


def guarded(folder: Path, rank: int) -> bool:
    """Nobody waits for what the script has one rank save."""
    path = folder / "guarded.pt"
    if rank == 0:
        torch.save(1, path)
        await_file(folder / "gone")
    else:
        await_file(path)
        torch.load(path)
        (folder / "gone").touch()
    return True


def links(folder: Path, rank: int) -> Any:
    """The file a link leads to is replaced."""
    link, target = folder / "link.pt", folder / "target.pt"
    if rank == 0:
        link.symlink_to(target)
        torch.save(1, link)
    return link.is_symlink(), target.is_file() or rank != 0


def modes(folder: Path, rank: int) -> int:
    path = folder / f"mode{rank}.pt"
    path.touch()
    path.chmod(0o600)
    torch.save(1, path)
    return stat.S_IMODE(path.stat().st_mode)


def devices(folder: Path, rank: int) -> Any:
    """A pipe, which stands for devices: a test could do harm to those."""
    pipe = folder / f"pipe{rank}.pt"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        torch.save(torch.ones(3), pipe)
        return stat.S_ISFIFO(pipe.stat().st_mode), len(os.read(held, 1 << 16)) > 0
    finally:
        os.close(held)


def no_room(folder: Path, rank: int) -> Any:
    """As a disk that is full after 64 kB."""
    path, before = folder / f"big{rank}.pt", resource.getrlimit(resource.RLIMIT_FSIZE)
    torch.save("before", path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        torch.save(torch.ones(1 << 16), path)
    except Exception as error:
        return type(error).__name__, str(error), str(path), torch.load(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def pickles(folder: Path, rank: int) -> list[str]:
    """Models of the block, trained and saved whole."""
    names = []
    for name, make in (("keeping", Keeping), ("plain", lambda: nn.Sequential(nn.Linear(4, 3)))):
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        F.mse_loss(model(torch.ones(2, 4)), torch.zeros(2, 3)).backward()
        optimizer.step()
        if rank == 0:
            torch.save(model, folder / f"{name}.pt")
            (folder / f"{name}.pickle").write_bytes(pickle.dumps(model))
            names += [f"{name}.pt", f"{name}.pickle"]
        model(torch.ones(2, 4)).sum().backward()
    return names


def others(folder: Path, rank: int) -> None:
    """By means that dream does not change: one file for both ranks, and one for each."""
    np.save(folder / "one.npy", np.ones(3))
    np.save(folder / f"rank{rank}.npy", np.ones(3))
    with (folder / "log.txt").open("a") as log:
        log.write("both\n")
    if rank == 1:
        (folder / "alone.txt").write_text("rank 1's")
