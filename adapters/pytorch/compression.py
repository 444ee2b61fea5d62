"""Gradients that become one on their way between ranks: their mean on any wire, or what an exchange
makes of them: half precision, low rank, the largest elements, Adasum.

Torch has hooks of its own for PowerSGD and half precision. They stand on a process group, and so
not on the ring or on shared memory, and those for half precision sum in half precision.

Annotations are evaluated here, since DDP compares a hook's with its own classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from dream.adapters.pytorch.loss.calls import LossMessage
from dream.adapters.pytorch.private import GradBucket
from dream.collectives import Communicator, Wire
from dream.update.compression import TINY, Compression, check_ranks
from dream.update.update import UpdateOptions


class GradientExchange(ABC):
    """Makes a bucket's gradients one. All ranks come out with the same bits."""

    @abstractmethod
    def takes(self, gradient: torch.Tensor) -> bool:
        """Whether this one is worth it; the others are averaged as they are."""

    @abstractmethod
    def __call__(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        """Write the gradients of all ranks over this rank's. parameters: whose they are, which
        stay the same from step to step."""


Future = torch.futures.Future[torch.Tensor]
_HALF = (torch.float16, torch.bfloat16)


@final
class Exchanged:
    """Gradients made one over the ranks, as they come: DDP's buckets on any wire, or any.

    exchange: None for their mean, which is also made of what it does not take (a loss that rides
    along). Half precision is added up in float32.
    """

    def __init__(self, exchange: GradientExchange | None, wire: Wire, world_size: int) -> None:
        self._exchange, self._wire, self._world_size = exchange, wire, world_size

    def hook(self, state: object, bucket: GradBucket) -> Future:
        """A DDP communication hook: (state, bucket) -> a future of the bucket's buffer."""
        if self._exchange is None:
            self._average(bucket.buffer())
        else:
            self.write_global(bucket.parameters(), bucket.gradients())
        future: Future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def write_global(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        """Write over each rank's gradients those that all ranks step on."""
        taken: list[tuple[torch.Tensor, torch.Tensor]] = []
        left: list[torch.Tensor] = []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            alone = isinstance(
                parameter, LossMessage
            )  # figures beside the gradients, sent as they are
            if self._exchange is not None and not alone and self._exchange.takes(gradient):
                taken.append((parameter, gradient))
            else:
                left.append(gradient)
        if taken and self._exchange is not None:
            self._exchange(*zip(*taken, strict=True))
        if left:
            wide = torch.float64 if left[0].dtype == torch.float64 else torch.float32
            flat = torch.cat([gradient.reshape(-1).to(wide) for gradient in left])
            write(self._average(flat), left)

    def _average(self, flat: torch.Tensor) -> torch.Tensor:
        (total,) = self._wire.all_reduce([flat.float() if flat.dtype in _HALF else flat], "sum")
        return flat.copy_(total.div_(self._world_size))


def write(flat: torch.Tensor, gradients: Sequence[torch.Tensor]) -> None:
    """Write the flat values over the gradients, one after the other."""
    parts = flat.split([g.numel() for g in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


@final
class Adasum(GradientExchange):
    """On the communicator's sends and receives. Sent: the gradient, log2(ranks) times."""

    def __init__(self, communicator: Communicator) -> None:
        check_ranks(communicator.world_size)
        self._communicator = communicator

    def takes(self, gradient: torch.Tensor) -> bool:
        return True

    def __call__(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        own = [g.reshape(-1).float().clone() for g in gradients]
        distance = 1
        while distance < self._communicator.world_size:
            own = self._met(own, self._communicator.rank ^ distance)
            distance *= 2
        write(torch.cat(own), gradients)

    def _met(self, own: list[torch.Tensor], peer: int) -> list[torch.Tensor]:
        """The pair's, reckoned alike on both sides."""
        flat = torch.cat(own)
        if self._communicator.rank < peer:
            self._communicator.send(flat, to=peer)
            theirs = self._communicator.receive(peer, like=flat)
        else:
            theirs = self._communicator.receive(peer, like=flat)
            self._communicator.send(flat, to=peer)
        others = theirs.split([len(part) for part in own])
        pairs = [(own, others), (others, own)][self._communicator.rank > peer]
        return [adasum(a, b) for a, b in zip(*pairs, strict=True)]


def adasum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Combine two gradients of one parameter; products are summed in float64."""
    wide_a, wide_b = a.double(), b.double()
    dot, of_a, of_b = float(wide_a @ wide_b), float(wide_a @ wide_a), float(wide_b @ wide_b)
    share_a = 1.0 - dot / (2.0 * of_a) if of_a >= TINY else 1.0
    share_b = 1.0 - dot / (2.0 * of_b) if of_b >= TINY else 1.0
    return (wide_a * share_a + wide_b * share_b).to(a.dtype)


@final
class HalfPrecision(GradientExchange):
    """Each rank gets its chunk of everybody's gradients, rounded; adds it up in float32; and sends
    the rounded mean to all. Error: two roundings of each element, however many ranks.

    A wire moves int32, so two elements are one.
    """

    def __init__(self, wire: Wire, world_size: int, dtype: torch.dtype) -> None:
        self._wire, self._world_size, self._dtype = wire, world_size, dtype

    def takes(self, gradient: torch.Tensor) -> bool:
        return True

    def __call__(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        ranks = self._world_size
        length = sum(g.numel() for g in gradients)
        chunk = 2 * -(-length // (2 * ranks))
        sent = gradients[0].new_zeros(ranks * chunk, dtype=self._dtype)
        torch.cat([g.reshape(-1).to(self._dtype) for g in gradients], out=sent[:length])
        pairs = [chunk // 2] * ranks
        came = self._wire.all_to_all(sent.view(torch.int32), pairs, pairs)
        summed = came.view(self._dtype).view(ranks, chunk).float().sum(dim=0)
        mean = summed.div_(ranks).to(self._dtype)
        whole = self._wire.all_gather(mean.view(torch.int32)).view(self._dtype)
        write(whole[:length], gradients)


@final
class PowerSgd(GradientExchange):
    """A gradient as a matrix M of shape (n, m): P = M Q and Q = M' P, both added up over the ranks,
    give P Q', of rank `rank`. Q starts as the last step's.

    Sent for each: rank * (n + m) floats instead of n * m; where that saves nothing, it is left.
    """

    def __init__(self, wire: Wire, world_size: int, rank: int) -> None:
        self._wire, self._world_size, self._rank = wire, world_size, rank
        self._missed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._right: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def takes(self, gradient: torch.Tensor) -> bool:
        if gradient.dim() < 2:
            return False
        rows, columns = gradient.shape[0], gradient[0].numel()
        return self._rank * (rows + columns) < rows * columns

    def __call__(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        matrices = [self._with_missed(p, g) for p, g in zip(parameters, gradients, strict=True)]
        rights = [self._start(p, m) for p, m in zip(parameters, matrices, strict=True)]
        lefts = self._averaged([m @ q for m, q in zip(matrices, rights, strict=True)])
        lefts = [torch.linalg.qr(left).Q for left in lefts]
        rights = self._averaged([m.T @ p for m, p in zip(matrices, lefts, strict=True)])
        for parameter, gradient, matrix, left, right in zip(
            parameters, gradients, matrices, lefts, rights, strict=True
        ):
            found = left @ right.T
            self._missed[parameter] = matrix - found
            self._right[parameter] = right
            gradient.copy_(found.view_as(gradient))

    def _with_missed(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        matrix = gradient.float().reshape(len(gradient), -1)
        missed = self._missed.get(parameter)
        return matrix.clone() if missed is None else matrix + missed

    def _start(self, parameter: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """Last step's; at first a draw that is the same on every rank."""
        right: torch.Tensor | None = self._right.get(parameter)
        if right is not None:
            return right
        generator = torch.Generator().manual_seed(matrix.numel())
        drawn = torch.randn(matrix.shape[1], self._rank, generator=generator)
        return drawn.to(matrix.device)

    def _averaged(self, factors: list[torch.Tensor]) -> list[torch.Tensor]:
        (total,) = self._wire.all_reduce([torch.cat([f.reshape(-1) for f in factors])], "sum")
        write(total.div_(self._world_size), factors)
        return factors


@final
class TopK(GradientExchange):
    """Each rank sends places and values of a fraction of each parameter's elements, one at least,
    and all add up all. Sent: 8 bytes for each of those, to every other rank."""

    def __init__(self, wire: Wire, world_size: int, asked: Compression) -> None:
        self._wire, self._world_size, self._asked = wire, world_size, asked
        self._kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def takes(self, gradient: torch.Tensor) -> bool:
        return True

    def __call__(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        wholes = [self._with_kept(p, g) for p, g in zip(parameters, gradients, strict=True)]
        chosen = [self._choose(p, w) for p, w in zip(parameters, wholes, strict=True)]
        places = torch.cat([place for place, _ in chosen]).to(torch.int32)
        values = torch.cat([value for _, value in chosen])
        came = self._wire.all_gather(torch.cat([places, values.view(torch.int32)]))
        of_ranks = came.view(self._world_size, 2, -1)
        counts = [len(place) for place, _ in chosen]
        for gradient, place, value in zip(
            gradients,
            of_ranks[:, 0].split(counts, dim=1),
            of_ranks[:, 1].split(counts, dim=1),
            strict=True,
        ):
            total = torch.zeros(gradient.numel(), device=gradient.device)
            for rank in range(self._world_size):
                total.index_add_(0, place[rank].long(), value[rank].contiguous().view(torch.float))
            gradient.copy_(total.div_(self._world_size).view_as(gradient))

    def _with_kept(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        flat = gradient.float().reshape(-1)
        kept = self._kept.get(parameter)
        return flat.clone() if kept is None else flat + kept

    def _choose(
        self, parameter: torch.Tensor, whole: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(places, values) of the largest; the rest is kept for the next step."""
        count = self._asked.elements(len(whole))
        places = whole.abs().topk(count, sorted=False).indices
        values = whole[places]
        self._kept[parameter] = whole.index_fill(0, places, 0.0)
        return places, values


def exchange_of(
    update_options: UpdateOptions, wire: Wire, communicator: Communicator
) -> GradientExchange | None:
    """Make the exchange that was asked for; None for the plain mean."""
    world_size, asked = communicator.world_size, update_options.compressed
    if update_options.op == "adasum":
        return Adasum(communicator.unchecked())
    if asked is None:
        return None
    match asked.kind:
        case "float16":
            return HalfPrecision(wire, world_size, torch.float16)
        case "bfloat16":
            return HalfPrecision(wire, world_size, torch.bfloat16)
        case "powersgd":
            return PowerSgd(wire, world_size, int(asked.amount))
        case "topk":
            return TopK(wire, world_size, asked)
