"""What ranks do that is no single call: each is a function of the Rank, run on all of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from ranks_worker import Rank

ALGORITHMS = ("naive", "ring", "halving_doubling")


def board(rank: Rank, reduction: str) -> str:
    """What the ranks compare their calls on."""
    return type(rank.communicator(reduction)._members.board).__name__


def differing(rank: Rank, reduction: str, what: str) -> Any:
    """The last rank calls something else; then all make one call that is right."""
    c = rank.communicator(reduction)
    odd = c.rank == c.world_size - 1
    x = np.ones((2, 3), np.float32)
    try:
        _differing(c, what, x, odd=odd)
        said = "nothing was raised"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return said, c.all_reduce(x, "sum").tolist()


def _differing(c: Any, what: str, x: np.ndarray, *, odd: bool) -> None:
    if what == "operation":
        c.broadcast(x) if odd else c.all_reduce(x, "sum")
    elif what == "op":
        c.all_reduce(x, "max" if odd else "sum")
    elif what == "shape":
        c.all_reduce(x[:, :2] if odd else x, "sum")
    elif what == "dtype":
        c.all_reduce(x.astype(np.float64) if odd else x, "sum")
    elif what == "root":
        c.broadcast(x, root=1 if odd else 0)
    elif what == "count":
        c.all_reduce([x, x] if odd else [x], "sum")
    elif what == "rest":
        c.all_gather(x[:, :2] if odd else x)
    elif what == "algorithm":
        c.all_reduce(x, "sum", algorithm="ring" if odd else "naive")


def out_of_order(rank: Rank, reduction: str) -> Any:
    """Two calls, which the last rank makes the other way round."""
    c = rank.communicator(reduction)
    calls = [lambda: c.all_reduce(np.ones(2, np.float32), "sum"), lambda: c.broadcast(np.ones(2))]
    if c.rank == c.world_size - 1:
        calls.reverse()
    said = []
    for call in calls:
        try:
            call()
            said.append("nothing was raised")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said, c.all_reduce(np.ones(1), "sum").tolist()


def side_by_side(rank: Rank, reduction: str) -> Any:
    """Calls that need nothing of one another, in one graph, which could run them in any order, or
    at once; many times."""
    import tensorflow as tf

    c = rank.communicator(reduction, check=False)

    def calls(x: Any) -> list[Any]:
        return [
            c.all_reduce(x, "sum"), c.all_to_all(x), c.broadcast(x), c.all_gather(x[:1]),
            c.all_reduce(2 * x, "max"), c.all_to_all(3 * x),
        ]  # fmt: skip

    act = tf.function(calls)
    x = rank.side.native(np.arange(c.world_size, dtype=np.float32) + 10 * c.rank)
    for _ in range(30):
        found = act(x)
    return [rank.side.numpy(y).tolist() for y in found]


def one_stays_away(rank: Rank, reduction: str, folder: str) -> Any:
    """The last rank comes for a call once the others have given it up."""
    c = rank.communicator(reduction)
    c.barrier()
    others = [Path(folder, f"gave-up-{other}") for other in range(c.world_size - 1)]
    if c.rank == c.world_size - 1:
        while not all(other.exists() for other in others):
            time.sleep(0.02)
    try:
        c.all_reduce(np.ones(2, np.float32), "sum")
        said = "nothing was raised"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    Path(folder, f"gave-up-{c.rank}").touch()
    return said


def in_place(rank: Rank, reduction: str) -> Any:
    """`out=`: x itself, another one, and one of NumPy's."""
    c = rank.communicator(reduction)
    mine = np.full((2, 2), c.rank + 1, np.float32)
    x = rank.side.writable(mine)
    same = c.all_reduce(x, "sum", out=x)
    other = rank.side.writable(np.zeros((2, 2), np.float32))
    c.all_reduce(rank.side.native(mine), "max", out=other)
    array = mine.copy()
    c.all_reduce(array, "sum", out=array)
    several = [mine.copy(), mine.copy()]
    c.all_reduce(several, "min", out=several)
    return same is x, *(np.asarray(rank.side.numpy(y)) for y in (x, other)), array, several


def objects(rank: Rank, reduction: str) -> Any:
    c = rank.communicator(reduction)
    mine = {"rank": c.rank, "text": "x" * c.rank}
    last = c.world_size - 1
    return (
        c.all_gather_object(mine),
        c.broadcast_object(mine, root=last),
        c.gather_object(mine, root=last),
        c.scatter_object([f"for {r}" for r in range(c.world_size)] if c.rank == 0 else None),
    )


def groups(rank: Rank, reduction: str) -> Any:
    """The first rank alone, the others together; what the others do does not wait for it."""
    c = rank.communicator(reduction)
    found: list[Any] = []
    for chosen in ([0], list(range(1, c.world_size))):
        group = c.group(chosen)
        if group is None:
            found.append(None)
            continue
        total = group.all_reduce(np.full(3, c.rank, np.float32), "sum")
        rows = group.all_gather(np.full((c.rank, 1), c.rank, np.int64))
        first = group.broadcast(np.array([c.rank]), root=0)
        found.append((group.rank, group.world_size, total.tolist(), rows.tolist(), first.tolist()))
    return found, c.all_reduce(np.ones(1), "sum").tolist()


def algorithms(rank: Rank, reduction: str, elements: int) -> Any:
    """By algorithm: the result, and the bytes that were sent."""
    c = rank.communicator(reduction)
    x = np.arange(elements, dtype=np.float32) + c.rank
    found = {}
    for name in ALGORITHMS:
        before = c.bytes_sent
        result = c.all_reduce(x, "sum", algorithm=name)
        found[name] = result, c.bytes_sent - before
    return found


def talk(rank: Rank, reduction: str) -> Any:
    """Non-blocking both ways, more than one away at a time, in order."""
    c = rank.communicator(reduction)
    right, left = (c.rank + 1) % c.world_size, (c.rank - 1) % c.world_size
    sent = [c.isend(np.full(4, 10 * c.rank + i), to=right) for i in range(3)]
    coming = [c.ireceive(left, like=np.zeros(4, np.int64)) for _ in range(3)]
    came = [handle.wait(300).tolist() for handle in coming]
    for handle in sent:
        handle.wait(300)
    return came, all(handle.done() for handle in (*sent, *coming))


def unmatched(rank: Rank, reduction: str) -> Any:
    """Rank 0 sends what rank 1 does not expect."""
    c = rank.communicator(reduction)
    try:
        if c.rank == 0:
            c.send(np.ones(3, np.float32), to=1)
        elif c.rank == 1:
            c.receive(0, like=np.ones(4, np.float32))
        said = "nothing was raised"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    if c.rank == 0:
        c.send(np.ones(1), to=1)
    elif c.rank == 1:
        c.receive(0)
    return said


def refusals(rank: Rank, reduction: str) -> dict[str, str]:
    c = rank.communicator(reduction)
    acts = {
        "op": lambda: c.all_reduce(np.ones(1), "median"),
        "mean": lambda: c.all_reduce(np.ones(1, np.int32)),
        "sum_of_bool": lambda: c.all_reduce(np.ones(1, bool), "sum"),
        "complex_max": lambda: c.all_reduce(np.ones(1, np.complex64), "max"),
        "strings": lambda: c.broadcast(np.array(["a"])),
        "root": lambda: c.broadcast(np.ones(1), root=9),
        "uneven": lambda: c.reduce_scatter(np.ones(c.world_size + 1)),
        "splits": lambda: c.all_to_all(np.ones(4), splits=[1]),
        "parts": lambda: c.all_to_all([np.ones(1)] * (c.world_size + 1)),
        "algorithm": lambda: c.all_reduce(np.ones(1), algorithm="rings"),
        "self": lambda: c.send(np.ones(1), to=c.rank),
        "twice": lambda: c.group([0, 0]),
        "list": lambda: c.all_reduce("words"),
    }
    found = {}
    for name, act in acts.items():
        try:
            act()
            found[name] = "nothing was raised"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found
