"""What a user holds: every collective, checked before it moves a byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from dream._errors import ConfigurationError
from dream.collectives import objects, scattering
from dream.collectives.agreement import Adding, Agreement
from dream.collectives.board import Said
from dream.collectives.composed import Composed
from dream.collectives.members import Members
from dream.collectives.post import Handle, Post
from dream.collectives.tensors import Tensors, as_written, check_moves
from dream.collectives.transport import Native, Op, Tensor, Wire


@final
class Communicator:
    """What the ranks of a job do together, on torch, TensorFlow and NumPy tensors alike.

    Every rank makes the same calls in the same order. Inputs are never changed, unless named as
    `out=`; the result is of the caller's kind and dtype. Below, N is the bytes of a tensor and P
    the ranks; "sent" is what each rank sends at least, on a wire that does no better or worse.

    Before a byte moves the ranks compare what they are about to do: another operation, op, dtype,
    shape or root on some rank is `Desynchronized` on every rank, which names ranks and calls, and
    the communicator is as usable as before. A rank that does not come within DREAM_STALL_SECONDS
    (1800) is named likewise; one that is gone is `WorkerFailed`. `check=False` leaves this out.
    """

    def __init__(
        self, wire: Wire, tensors: Tensors, members: Members, *, check: bool = True
    ) -> None:
        self._wire, self._tensors, self._members = wire, tensors, members
        self._rank, self._size = members.rank, members.size
        self._do = Composed(wire, tensors, self._rank, self._size)
        self._agreement = Agreement(members, tensors, self._do, check=check)
        self._adding = Adding(tensors, self._agreement)
        self._post = Post(members, tensors, self._agreement)
        self._groups = 0

    @property
    def rank(self) -> int:
        """This rank's number in the group, from 0."""
        return self._rank

    @property
    def world_size(self) -> int:
        """How many ranks there are in the group."""
        return self._size

    @property
    def reduction(self) -> str:
        """The transport, as `reduction=` spells it."""
        return self._wire.name

    @property
    def bytes_sent(self) -> int:
        """Bytes of tensors that this rank has sent by `send`, and by the algorithms that are
        written on it ("ring", "naive", "halving_doubling"). A transport's own are not counted."""
        return self._post.sent

    @as_written
    def unchecked(self) -> Communicator:
        """The same without the comparison: for calls that are known to be the same."""
        return Communicator(self._wire, self._tensors, self._members, check=False)

    @as_written
    def all_reduce(
        self,
        x: Tensor | Sequence[Tensor],
        op: Op = "mean",
        *,
        out: Tensor | None = None,
        algorithm: str = "auto",
    ) -> Any:
        """Every rank's `x` combined, on every rank.

        x: a tensor of any shape, alike on every rank; or a list of tensors, which travel together
            and come back as a list.
        op: "mean", "sum", "min", "max" or "product". A mean of integers raises `Unsupported`, and
            so do sums and products of bool.
        out: a tensor like `x` to write to, `x` itself allowed; with a list, a list.
        algorithm: "auto" is the transport's own; "ring", "naive" and "halving_doubling" are the
            textbook's, on `send` and `receive`.
        Sent: 2N(P-1)/P.
        """
        if algorithm != "auto":
            return self._tensors.give(self._post.all_reduce(x, op, algorithm), x, out)
        if isinstance(x, (list, tuple)):
            return self._all_reduce_many(x, op, out)
        value, dtype = self._agreed("all_reduce", x, op)
        return self._tensors.give(self._do.all_reduce(value, op, dtype, own=out is x), x, out)

    @as_written
    def reduce(
        self, x: Tensor, op: Op = "mean", *, root: int = 0, out: Tensor | None = None
    ) -> Any:
        """Every rank's `x` combined, on rank `root`; None on the others.

        x, op, out: as in `all_reduce`. Sent: 2N(P-1)/P, as this is an all_reduce that only one
        looks at.
        """
        self._members.check(root, "root")
        value, dtype = self._agreed("reduce", x, op, root)
        result = self._do.all_reduce(value, op, dtype)
        return self._tensors.give(result, x, out) if root == self._rank else None

    @as_written
    def broadcast(
        self, x: Tensor | Sequence[Tensor], root: int = 0, *, out: Tensor | None = None
    ) -> Any:
        """`root`'s `x`, on every rank.

        x: a tensor or a list of tensors, alike on every rank; of any dtype that has bytes.
        Sent: at most N(P-1), on root.
        """
        self._members.check(root, "root")
        several = isinstance(x, (list, tuple))
        items = list(x) if isinstance(x, (list, tuple)) else [x]
        values = [self._tensors.take(item) for item in items]
        values = self._agreement.agree(self._moving("broadcast", values, root=root), values)
        moved = self._do.broadcast(values, root)
        outs = list(out) if several and out is not None else [out] * len(items)
        given = [self._tensors.give(*each) for each in zip(moved, items, outs, strict=True)]
        return given if several else given[0]

    @as_written
    def all_gather(self, x: Tensor, *, out: Tensor | None = None) -> Any:
        """Every rank's `x` joined along dim 0 in rank order, on every rank.

        x: shape (n, ...); n may differ between ranks, the other dims and the dtype may not. A
            0-d tensor counts as one of shape (1,).
        Returns shape (sum of n, ...). Sent: n's bytes, times P-1. Gradients flow back through it:
        a rank's rows get the sum of all ranks' gradients of them, so a loss of the gathered outputs
        trains as on one device.
        """
        if out is None:
            followed = self._tensors.gathered(x, self._rank, self._all_gather, self._add_up)
            if followed is not None:
                return followed
        return self._all_gather(x, out)

    def _add_up(self, x: Tensor) -> Any:
        return self.all_reduce(x, "sum")

    def _all_gather(self, x: Tensor, out: Tensor | None = None) -> Any:
        value = self._rows(x)
        value, lengths = self._agreement.lengths(self._moving("all_gather", [value]), value)
        even = all(isinstance(n, int) and n == lengths[0] for n in lengths)
        return self._tensors.give(self._do.all_gather(value, lengths, even=even), x, out)

    @as_written
    def gather(self, x: Tensor, *, root: int = 0, out: Tensor | None = None) -> Any:
        """Every rank's `x` joined along dim 0 in rank order, on rank `root`; None on the others.

        x: as in `all_gather`. Sent: N, on all but root.
        """
        self._members.check(root, "root")
        value = self._rows(x)
        said = self._moving("gather", [value], root=root)
        value, lengths = self._agreement.lengths(said, value)
        moved = self._do.gather(value, lengths, root)
        return None if moved is None else self._tensors.give(moved, x, out)

    @as_written
    def scatter(
        self,
        parts: Sequence[Tensor] | None = None,
        *,
        root: int = 0,
        like: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Any:
        """`root`'s parts dealt out: rank r gets parts[r].

        parts: on root a list of P tensors alike but for dim 0; elsewhere None, or anything.
        like: a tensor of the kind wanted. Inside a tf.function every rank must give it, and its
            dtype and shape are those of this rank's part.
        Returns this rank's part, of the kind of `like`, or else of parts[0] on root and of the
        communicator's framework elsewhere. Sent: by root, all but its own part.
        """
        self._members.check(root, "root")
        values = [self._tensors.take(part) for part in parts or ()] if root == self._rank else []
        plan = scattering.plan(self._tensors, self._agreement, self._members, values, root, like)
        moved = self._do.scatter(values, root, *plan)
        if like is None and values and parts:
            like = parts[0]
        return self._tensors.give(moved, moved if like is None else like, out)

    @as_written
    def reduce_scatter(self, x: Tensor, op: Op = "mean", *, out: Tensor | None = None) -> Any:
        """Every rank's `x` combined, and cut along dim 0: rank r gets the r-th of P equal chunks.

        x: shape (n, ...), alike on every rank, n a multiple of P. op: as in `all_reduce`.
        Returns shape (n / P, ...), added up in rank order. Sent: N(P-1)/P.
        """
        value = self._tensors.take(x)
        shape = self._tensors.shape(value)
        if not shape or (shape[0] is not None and shape[0] % self._size):
            raise ConfigurationError(
                "reduce_scatter cuts dim 0 into equal chunks. Received: shape "
                f"{shape}, world size {self._size}. Give a multiple of {self._size} rows."
            )
        value, dtype = self._agreed("reduce_scatter", value, op)
        return self._tensors.give(self._do.reduce_scatter(value, op, dtype), x, out)

    @as_written
    def all_to_all(
        self, x: Tensor | Sequence[Tensor], *, splits: Sequence[int] | None = None
    ) -> Any:
        """Every rank sends each rank a part of its own.

        x: a tensor, whose rows are cut by `splits`; or the list of P parts itself, which are
            alike but for dim 0. Dtype and other dims are the same on every rank.
        splits: rows for each rank; None cuts equally.
        Returns what came, in rank order: joined along dim 0 for a tensor, else a list. Sent: all
        but this rank's own part.
        """
        if not isinstance(x, (list, tuple)):
            moved = self._all_to_all(
                scattering.cut(self._tensors, self._rows(x), splits, self._size)
            )
            return self._tensors.give(self._tensors.join(moved), x, None)
        parts = [self._rows(part) for part in x]
        scattering.check_parts(self._tensors, parts, self._size)
        moved = self._all_to_all(parts)
        return [self._tensors.give(part, like, None) for part, like in zip(moved, x, strict=True)]

    @as_written
    def send(self, x: Tensor, to: int) -> None:
        """`x` to another rank, which receives it. Returns once it has begun to; with check=False,
        as soon as `x` is on its way. Sent: N."""
        self._post.send(x, to)

    @as_written
    def receive(self, source: int, *, like: Tensor | None = None, out: Tensor | None = None) -> Any:
        """What another rank sends to this one, waited for.

        like: a tensor that says of what kind, dtype and shape it must be; None takes whatever
            comes, as a tensor of the communicator's framework.
        """
        return self._post.receive(source, like if like is not None else out, out)

    @as_written
    def isend(self, x: Tensor, to: int) -> Handle:
        """`send` that returns at once. `x` is copied, so it may change meanwhile."""
        return self._post.isend(x, to)

    @as_written
    def ireceive(
        self, source: int, *, like: Tensor | None = None, out: Tensor | None = None
    ) -> Handle:
        """`receive` that returns at once; its handle's `wait` gives the tensor."""
        return self._post.ireceive(source, like if like is not None else out, out)

    @as_written
    def barrier(self) -> None:
        """Return once every rank has called it."""
        (token,) = self._agreement.agree(Said("barrier"), [self._tensors.numbers([0])])
        if not self._agreement.check:
            self._wire.all_reduce([token], "max")

    @as_written
    def meet(self, name: str, **arguments: object) -> None:
        """A barrier with a name: `Desynchronized` on every rank where one comes to another."""
        self._tensors.refuse_in_graphs(name)
        self._agreement.agree(Said(name, arguments=arguments), [])

    @as_written
    def all_gather_object(self, value: object) -> list[Any]:
        """Every rank's value, in rank order, on every rank. For small things said now and then
        (layouts, figures): None, bool, int, float, str, bytes, lists, tuples and dicts of them,
        and NumPy arrays."""
        return objects.all_gather(self, value)

    @as_written
    def broadcast_object(self, value: object, root: int = 0) -> Any:
        """`root`'s value, as in `all_gather_object`, on every rank."""
        self._members.check(root, "root")
        return objects.broadcast(self, value, root)

    @as_written
    def gather_object(self, value: object, *, root: int = 0) -> list[Any] | None:
        """Every rank's value, as in `all_gather_object`, on rank `root`; None on the others."""
        self._members.check(root, "root")
        return objects.gather(self, value, root)

    @as_written
    def scatter_object(self, values: Sequence[object] | None = None, *, root: int = 0) -> Any:
        """Rank r gets root's values[r]; the others' values do not matter."""
        self._members.check(root, "root")
        return objects.scatter(self, values, root)

    @as_written
    def group(self, ranks: Sequence[int]) -> Communicator | None:
        """A communicator on some of the ranks, numbered from 0 in the order given; None on the
        others. Every rank of this one calls it, with the same ranks."""
        chosen = tuple(ranks)
        if not chosen or len({*chosen}) != len(chosen):
            raise ConfigurationError(
                f"A group needs ranks, each once. Received: {list(ranks)}, world size {self._size}."
            )
        for rank in chosen:
            self._members.check(rank, "a group's rank")
        self._agreement.agree(Said("group", arguments={"ranks": list(chosen)}), [])
        self._groups += 1
        wire = self._wire.group(chosen)
        if wire is None:
            return None
        name = f"{self._members.name}.{self._groups}"
        return Communicator(
            wire, self._tensors, self._members.some(chosen, name), check=self._agreement.check
        )

    def close(self) -> None:
        """Let go of the transport. Idempotent."""
        self._wire.close()

    def _agreed(self, name: str, x: Tensor, op: Op, root: int | None = None) -> tuple[Native, str]:
        """What is to be added up, once the ranks agree on it, and the dtype it travels in."""
        (value,), (dtype,) = self._adding.agreed(name, [self._tensors.take(x)], op, root)
        return value, dtype

    def _moving(self, name: str, values: Sequence[Native], **arguments: object) -> Said:
        dtypes = [self._tensors.dtype(value) for value in values]
        for dtype in dtypes:
            check_moves(dtype)
        return Said(name, dtypes, arguments)

    def _all_reduce_many(
        self, xs: Sequence[Tensor], op: Op, outs: Sequence[Tensor] | None
    ) -> list[Any]:
        values = [self._tensors.take(x) for x in xs]
        values, dtypes = self._adding.agreed("all_reduce", values, op)
        results = self._do.all_reduce_many(values, op, dtypes)
        given = zip(results, xs, outs or [None] * len(xs), strict=True)
        return [self._tensors.give(*each) for each in given]

    def _all_to_all(self, parts: list[Native]) -> list[Native]:
        parts, lengths = self._agreement.splits(self._moving("all_to_all", parts[:1]), parts)
        return self._do.all_to_all(parts, lengths)

    def _rows(self, x: Tensor) -> Native:
        """`x` with a dim 0."""
        value = self._tensors.take(x)
        return value if self._tensors.shape(value) else self._tensors.row(value)
