"""Every collective, with a picture of who holds what before and after.

dream run -n 3 examples/collectives.py                           three ranks, on torch
dream run -n 3 examples/collectives.py --framework tensorflow    the same on TensorFlow
python examples/collectives.py                                   one rank, which holds everything
"""

import argparse
import os

import numpy as np

import dream

parser = argparse.ArgumentParser()
default = os.environ.get("DREAM_FRAMEWORK", "torch")  # what `dream run --framework` says
parser.add_argument("--framework", choices=["torch", "tensorflow"], default=default)
framework = parser.parse_args().framework
if framework == "torch":
    from torch import tensor
else:
    from tensorflow import constant as tensor

ranks = dream.communicator(framework=framework)
me, size = ranks.rank, ranks.world_size


def words(held):
    """What a rank holds: a tensor, a list of them, an object, or nothing."""
    if held is None:
        return "-"
    if isinstance(held, (list, tuple)):
        return "  ".join(words(each) for each in held)
    return held if isinstance(held, str) else str(np.asarray(held).tolist())


def show(call, meaning, before, after):
    """One line a rank, printed by rank 0."""
    lines = ranks.gather_object((words(before), words(after)))
    if lines is not None:
        print(f"\n{call}\n    {meaning}")
        width = max(len(left) for left, _ in lines)
        for rank, (left, right) in enumerate(lines):
            print(f"    rank {rank}   {left:{width}}   ->   {right}")


if me == 0:
    if size > 1:
        print(f"{size} ranks on {framework}, over {ranks.reduction}")
    else:
        print("Alone, a rank gets back what it gave: dream run -n 3 examples/collectives.py")

# rank 1 of 3 holds [10, 11, 12]
numbers = [10 * me + place for place in range(size)]
x = tensor(numbers)
halves = tensor([me + 0.5])
rows = tensor([10 * me + place for place in range(me + 1)])  # one more than the rank before
parts = [tensor([number]) for number in numbers]

show('all_reduce(x, "sum")', "all added up, for everybody", x, ranks.all_reduce(x, "sum"))
show('all_reduce(x, "max")', "or min, product", x, ranks.all_reduce(x, "max"))
show("all_reduce(x)", "the mean, of floats", halves, ranks.all_reduce(halves))
show('reduce(x, "sum", root=0)', "added up, for the root alone", x, ranks.reduce(x, "sum", root=0))
show("broadcast(x, root=0)", "the root's, for everybody", x, ranks.broadcast(x, root=0))
show("all_gather(x)", "joined in rank order; as long as each likes", rows, ranks.all_gather(rows))
show("gather(x, root=0)", "joined, for the root alone", rows, ranks.gather(rows, root=0))

dealt = ranks.scatter(parts if me == 0 else None, root=0, like=x)
show("scatter(parts, root=0)", "the root's parts, dealt out", parts if me == 0 else None, dealt)

own = ranks.reduce_scatter(x, "sum")
show('reduce_scatter(x, "sum")', "added up, and each gets its chunk", x, own)
show("all_to_all(x)", "my n-th goes to rank n: rows become columns", x, ranks.all_to_all(x))

splits = [0] * (size - 1) + [size]
moved = ranks.all_to_all(x, splits=splits)
show(f"all_to_all(x, splits={splits})", "so many rows for each, here all for one", x, moved)

if size > 1:
    right, left = (me + 1) % size, (me - 1) % size
    coming = ranks.ireceive(left, like=x)  # at once; what comes is had by wait()
    ranks.send(x, to=right)
    show("send(x, to=...)", "each to its right-hand neighbour", x, coming.wait())

even = [rank for rank in range(size) if rank % 2 == 0]
group = ranks.group(even)
total = None if group is None else group.all_reduce(x, "sum")
show(f'group({even}).all_reduce(x, "sum")', "among some of the ranks", x, total)

said = ranks.all_gather_object(f"I am {me}")
show("all_gather_object(value)", "numbers, text, lists, dicts", f"I am {me}", said)
ranks.barrier()  # nobody goes on before all have come
