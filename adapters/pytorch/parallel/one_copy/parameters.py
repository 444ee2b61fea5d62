"""The parameters of a module, once on a host, and how their gradients come together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from mmap import mmap
from typing import final

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch.private import version_of
from dream.adapters.shared_memory._buckets import name_of
from dream.shared_memory import Group, Row, block

_MISSING, _WRITTEN = 6, 7
"""Places among the numbers that travel with a call."""

_GRAIN = 512
"""Bytes. Parameters begin, and parts end, at multiples: a vector of the processor's is never cut,
so the kernels of a part round as those of the whole do."""


@final
class OneCopy:
    """A module's trained parameters.

    A gradient comes to this rank's place in memory that all ranks read; of the part that this rank
    updates it is the mean over all ranks once `reduce` has ended, elsewhere it is the rank's own.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: Group) -> None:
        """parameters: alike on all ranks. group: the ranks of the host."""
        self.group = group
        self.layouts = layouts(parameters, group.size, group.place)
        self._memory = [block(group, layout.bytes) for layout in self.layouts]
        self._rows = [Row(group, layout.bytes) for layout in self.layouts]
        self._gradients = [
            torch.frombuffer(row.memory, dtype=each.dtype, count=each.length, offset=row.offset)
            for each, row in zip(self.layouts, self._rows, strict=True)
        ]
        self._views: list[tuple[nn.Parameter, torch.Tensor]] = []
        self.pieces: dict[nn.Parameter, tuple[nn.Parameter, Layout, int]] = {}
        self._handles: list[RemovableHandle] = []
        self._left_out = False
        for layout, memory, gradients in zip(
            self.layouts, self._memory, self._gradients, strict=True
        ):
            self._move(layout, memory, gradients)
        group.barrier()
        self._flags = torch.zeros(len(self._views), dtype=torch.int32)
        self.note()

    def note(self) -> None:
        """What the parameters hold now is right."""
        self._versions = [version_of(parameter) for parameter, _ in self._views]
        self._addresses = [parameter.data_ptr() for parameter, _ in self._views]

    def reduce(self) -> None:
        """Have this rank's part of the gradients be the mean over all ranks."""
        if self._left_out:
            self._take_in()
        group = self.group
        missing = [place for place, (p, _) in enumerate(self._views) if p.grad is None]
        for place in missing:
            self._views[place][1].zero_()
        group.riders.own[_MISSING] = float(len(missing))
        group.riders.own[_WRITTEN] = float(self._written() is not None)
        for layout, row in zip(self.layouts, self._rows, strict=True):
            group.reduce_there(
                row.begin, row.stride, layout.length, name_of(layout.dtype), "mean",
                everywhere=False,
            )  # fmt: skip
        told = group.riders.means[_MISSING], group.riders.means[_WRITTEN]
        group.riders.own[_MISSING] = group.riders.own[_WRITTEN] = 0.0
        if told[1]:
            raise _written_outside(self._written())
        if told[0]:
            self._leave_out(missing)

    def let_go(self) -> None:
        """Have every rank hold its own again."""
        self.release()
        for parameter, _ in self._views:
            parameter.data = parameter.detach().clone()

    def release(self) -> None:
        """Gradients come to the parameters as ever."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _move(self, layout: Layout, memory: mmap, gradients: torch.Tensor) -> None:
        for place, parameter in enumerate(layout.parameters):
            there = layout.whole(memory, place)
            if self.group.place == 0:
                there.copy_(parameter.detach())
            parameter.data = there
            piece = nn.Parameter(layout.piece(memory, place))
            piece.grad = layout.piece(gradients, place)
            self.pieces[parameter] = piece, layout, place
            view = layout.whole(gradients, place)
            if parameter.grad is not None:
                parameter.grad = None
            self._views.append((parameter, view))
            came = partial(_came, view)
            self._handles.append(parameter.register_post_accumulate_grad_hook(came))

    def _written(self) -> tuple[int, ...] | None:
        """The shape of a parameter that was written since the last note."""
        for (parameter, _), version, address in zip(
            self._views, self._versions, self._addresses, strict=True
        ):
            if version_of(parameter) != version or parameter.data_ptr() != address:
                return tuple(parameter.shape)
        return None

    def _leave_out(self, missing: Sequence[int]) -> None:
        """What no rank has a gradient of is not stepped."""
        self._flags.fill_(1)
        self._flags[list(missing)] = 0
        at = self._flags.data_ptr()
        self.group.all_reduce(at, at, len(self._flags), "int32", "max")
        gradients = dict(zip(map(id, self.layouts), self._gradients, strict=True))
        for (parameter, view), came in zip(self._views, self._flags.tolist(), strict=True):
            piece, layout, place = self.pieces[parameter]
            parameter.grad = view if came else None
            piece.grad = layout.piece(gradients[id(layout)], place) if came else None
        self._left_out = True

    def _take_in(self) -> None:
        """The next step may have a gradient of each."""
        self._left_out = False
        for layout, gradients in zip(self.layouts, self._gradients, strict=True):
            for place, parameter in enumerate(layout.parameters):
                piece = self.pieces[parameter][0]
                if piece.grad is None:
                    piece.grad = layout.piece(gradients, place)


def _came(view: torch.Tensor, parameter: torch.Tensor) -> None:
    """A gradient goes to its place as soon as it is there: it is in the cache still, and its own
    memory is free for the next one."""
    gradient = parameter.grad
    if gradient is view or gradient is None:
        return
    if gradient.is_sparse:
        raise Unsupported(
            "With one copy of the weights gradients are dense. Received: a sparse one, of shape "
            f"{tuple(gradient.shape)}. Make the embedding with sparse=False, or remove one_copy."
        )
    view.copy_(gradient)
    parameter.grad = view


def _written_outside(shape: tuple[int, ...] | None) -> ConfigurationError:
    what = "one on another rank" if shape is None else f"a parameter of shape {shape}"
    return ConfigurationError(
        "A parameter was written outside the update, and there is one copy of it for all ranks, "
        f"each of which would write it. Received: {what}. Load weights by strategy.load, or before "
        "the first step, or remove one_copy."
    )


@final
class Layout:
    """Parameters of one dtype one after the other, cut in as many equal parts as there are ranks.

    length: elements of all of it. share: of each part. first: this rank's begins there.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: int, rank: int) -> None:
        self.parameters, self.dtype = tuple(parameters), parameters[0].dtype
        self._strides = [_strides(parameter) for parameter in parameters]
        self.item = parameters[0].element_size()
        grain = _GRAIN // self.item
        self._starts, end = [], 0
        for parameter in parameters:
            self._starts.append(end)
            end += _up(parameter.numel(), grain)
        self.share = _up(-(-end // ranks), grain)
        self.length, self.first = self.share * ranks, self.share * rank
        self.bytes = self.length * self.item

    def own(self, place: int) -> tuple[int, int]:
        """Which elements of a parameter are in this rank's part: from, to."""
        start, count = self._starts[place], self.parameters[place].numel()
        edges = (self.first - start, self.first + self.share - start)
        begin, end = (min(max(edge, 0), count) for edge in edges)
        return begin, end

    def whole(self, memory: mmap | torch.Tensor, place: int) -> torch.Tensor:
        """A parameter's place in memory that is laid out so, in the parameter's shape."""
        flat = self._taken(memory, place, 0, self.parameters[place].numel())
        return flat.as_strided(self.parameters[place].shape, self._strides[place])

    def piece(self, memory: mmap | torch.Tensor, place: int) -> torch.Tensor:
        """The part of it that is this rank's, flat; it may be empty."""
        return self._taken(memory, place, *self.own(place))

    def cut(self, value: torch.Tensor, place: int) -> torch.Tensor:
        """This rank's part of a tensor of the parameter's shape, copied."""
        like = self.parameters[place]
        dense = torch.empty_strided(like.shape, self._strides[place], dtype=value.dtype)
        dense.copy_(value)
        begin, end = self.own(place)
        return dense.as_strided((like.numel(),), (1,))[begin:end].clone()

    def _taken(self, memory: mmap | torch.Tensor, place: int, begin: int, end: int) -> torch.Tensor:
        """In the ranks' memory each has a storage of its own: a file of one layer's weights has
        not the whole model in it."""
        start = self._starts[place] + begin
        if isinstance(memory, torch.Tensor):
            return memory[start : start + end - begin]
        if begin == end:
            return torch.empty(0, dtype=self.dtype)
        return torch.frombuffer(
            memory, dtype=self.dtype, count=end - begin, offset=start * self.item
        )


def layouts(parameters: Sequence[nn.Parameter], ranks: int, rank: int) -> list[Layout]:
    """One for each dtype, in the order in which they come."""
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_dtype.setdefault(parameter.dtype, []).append(parameter)
    return [Layout(alike, ranks, rank) for alike in by_dtype.values()]


def _strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """The parameter's own where it has no gaps, as in channels_last."""
    if parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last):
        return parameter.stride()
    return torch.empty(parameter.shape, device="meta").stride()


def _up(count: int, grain: int) -> int:
    return -(-count // grain) * grain
