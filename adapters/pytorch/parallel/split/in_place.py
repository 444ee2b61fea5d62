"""Strategies that split a model where it stands, so that an untouched loop trains it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from dream._adapter import Metric, Plan, Step
from dream.adapters.pytorch import evaluation
from dream.adapters.pytorch.keras.entry import forbid_fits
from dream.adapters.pytorch.parallel.split import state
from dream.adapters.pytorch.parallel.split.base import SplitAdapter
from dream.adapters.pytorch.parallel.split.clipping import Parts, wrap_clip_norm, wrap_clip_value
from dream.adapters.pytorch.parallel.split.meta import is_meta
from dream.adapters.pytorch.parallel.split.optimizers import Optimizers
from dream.adapters.pytorch.parallel.split.penalties import refuse_cut, wrap_backward
from dream.adapters.pytorch.parallel.split.room import Room
from dream.adapters.pytorch.parallel.split.root import Forward, SplitRoot
from dream.adapters.pytorch.parallel.split.saving import refusing_parts
from dream.adapters.pytorch.parallel.split.step import Summed
from dream.adapters.pytorch.parallel.split.whole_root import WholeRoot
from dream.adapters.pytorch.passes import step_of
from dream.adapters.pytorch.slot import wrap_compile
from dream.adapters.pytorch.step import plain_step
from dream.adapters.pytorch.update.cut import cuts_of
from dream.adapters.pytorch.update.spread import Spread
from dream.adapters.pytorch.update.weighing import MicroWeights
from dream.adapters.pytorch.weighing import count_of, weight_of

_HONOURED: Mapping[str, Collection[object]] = {
    "accumulate": (),
    "clip_norm": (),
    "clip_value": (),
    "precision": (),
    "recompute": (),
    "sync_batch_norm": (),
}


class InPlace(SplitAdapter):
    """Modules made in the block are split when an optimizer is given their parameters, or when
    they are first trained; the optimizer is given the parts."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        updates, knobs = self._training.updates, self._knobs
        self._room = Room(
            plan.spec.name,
            self._place.world,
            self._dealt,
            self._shares,
            self._dealt.rank,
            self._make_whole if self._alone else self._make_root,
            updates,
            self._training.precision,
            synchronises=knobs.synchronises,
            recomputes=knobs.recompute,
        )
        self._training.watch(lambda: self._room.called, self._room.gathering)
        self._micro = None if updates is None else MicroWeights(self._dealt, updates)
        self._optimizers = Optimizers(self._room)

    @abstractmethod
    def _make_root(self, module: nn.Module, room: Room, inner: Forward | None) -> SplitRoot:
        """What splits a module and takes its calls."""

    def _check_knobs(self) -> None:
        self._knobs.only(_HONOURED, f"A model that {self._plan.spec.name!r} splits")

    def _spread(self) -> Spread:
        return Parts(self._place.world)

    @abstractmethod
    def _group(self) -> ProcessGroup | None:
        """The ranks that batches are dealt to; None where that is one."""

    def _make_whole(self, module: nn.Module, room: Room, inner: Forward | None) -> SplitRoot:
        return WholeRoot(module, room, inner, device=self._device)

    @property
    def _alone(self) -> bool:
        return self._place.mesh.size == 1

    def enter(self) -> None:
        super().enter()
        replace = self._patches.replace
        replace(torch.optim.Optimizer, "__init__", self._optimizers.wrap_init(Optimizer.__init__))
        replace(nn.Module, "__init__", self._room.wrap_init(nn.Module.__init__))
        if self._alone:
            return
        replace(torch, "save", refusing_parts(torch.save))
        forbid_fits(self._patches, self._plan.spec.name)
        replace(torch.autograd, "backward", wrap_backward(torch.autograd.backward))
        replace(nn.Module, "compile", wrap_compile(nn.Module.compile))
        clip_norm, clip_value = nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_
        replace(nn.utils, "clip_grad_norm_", wrap_clip_norm(clip_norm))
        replace(nn.utils, "clip_grad_value_", wrap_clip_value(clip_value))
        self._training.enter(self._patches)

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        """Optimizers first, so that they follow what becomes of the parameters."""
        for item in objects:
            if isinstance(item, Optimizer):
                self._take_optimizer(item)
        return super().prepare(*objects)

    def _take_model(self, model: nn.Module) -> nn.Module:
        if not self._alone or is_meta(model):
            self._room.split(model)
        return model

    def _take_optimizer(self, optimizer: Optimizer) -> Optimizer:
        self._optimizers.take(optimizer)
        self._training.take(optimizer)
        return optimizer

    def train_step(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        weight: Callable[..., Any] | None,
    ) -> Step:
        self.prepare(model, optimizer)
        if self._alone:
            return plain_step(model, loss, optimizer)
        cut = cuts_of(self._training.most, self._dealt, self._shares, weight)
        passes = Summed(self._room.split(model), loss, self._group(), self._training.scaling)
        return step_of(passes, optimizer, cut, self._training.updates)

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        return evaluation.evaluate(model, data, metrics, self._dealt, together=True)

    def weigh(self, loss: Any, count: Any) -> Any:
        refuse_cut(loss)
        counted = count_of(count)
        for root in self._room.roots:
            root.weigh_by_hand(counted)
        if self._micro is not None:
            return self._micro.weigh(loss, counted)
        return loss * weight_of(self._dealt, counted)

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        self._room.rest()
        return state.whole(model)
