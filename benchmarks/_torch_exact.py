"""The digits run in torch, on this rank: FOLDER SCRIPT CONTENDER... "one device" runs by itself."""

from __future__ import annotations

import sys
from functools import partial

import _digits
import _torch_contenders as c
import torch
from _torch_contenders import Contender, Make
from _torch_scripts import SCRIPTS
from _torch_work import Work
from torch import distributed, nn
from torch.utils.data import TensorDataset

MAKES: dict[str, Make] = {
    "one device": c.plain,
    "raw DDP": c.raw_ddp,
    "Accelerate": c.accelerate,
    "Accelerate, split_batches": partial(c.accelerate, split=True),
    "Lightning Fabric": c.fabric,
    "dream": c.dream_loop,
    "dream, train_step": c.dream_step,
    "dream on the ring": partial(c.dream_loop, reduction="horovod"),
}
NEEDS = {
    "Accelerate": "accelerate",
    "Accelerate, split_batches": "accelerate",
    "Lightning Fabric": "lightning_fabric",
    "dream on the ring": "horovod",
}


def main(folder: str, script: str, *names: str) -> None:
    torch.set_num_threads(1)
    x, y = _digits.samples()
    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    how = SCRIPTS[script]
    work = Work(
        partial(network, how.dropout), data, batch=how.batch, shuffle=False,
        rate=_digits.RATE, loop=how.loop, optimize=how.optimize,
    )  # fmt: skip
    if names != ("one device",):
        distributed.init_process_group("gloo")
    for name in names:
        learned = outcome(MAKES[name], work)
        if not distributed.is_initialized() or distributed.get_rank() == 0:
            _digits.save(folder, name, learned)
    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


def network(dropout: float) -> nn.Module:
    hidden, output = nn.Linear(64, 32), nn.Linear(32, 10)
    first = _digits.first_weights()
    with torch.no_grad():
        for layer, name in ((hidden, "hidden"), (output, "output")):
            layer.weight.copy_(torch.from_numpy(first[f"{name}.kernel"].T))
            layer.bias.copy_(torch.from_numpy(first[f"{name}.bias"]))
    drops = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(hidden, nn.ReLU(), *drops, output)


def outcome(make: Make, work: Work) -> _digits.Arrays | str:
    """The weights after the run; or, where a peer refuses it on every rank, its words."""
    torch.manual_seed(0)
    try:
        contender = make(work)
        for _ in range(_digits.EPOCHS):
            contender.epoch()
    except ValueError as error:
        print(f"refused: {error}", file=sys.stderr)
        return "refuses"
    return learned(contender)


def learned(contender: Contender) -> _digits.Arrays:
    return {str(at): p.detach().numpy().copy() for at, p in enumerate(contender.model.parameters())}


if __name__ == "__main__":
    main(*sys.argv[1:])
