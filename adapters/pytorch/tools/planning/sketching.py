"""A torch model without values, and its training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch.loss.calls import SIZE as MESSAGE
from dream.adapters.pytorch.tools.planning.example import (
    Example,
    cast_batch,
    cast_model,
    example,
    make_optimizer,
    precision_context,
)
from dream.adapters.pytorch.tools.planning.ledger import Ledger, peaks, size
from dream.adapters.pytorch.tools.planning.rehearsal import rehearse
from dream.adapters.pytorch.update import batch_norm
from dream.adapters.pytorch.update.recompute import recompute
from dream.tools.plan.asked import TrainingSpec
from dream.tools.plan.sketch import (
    STRATEGY_KINDS,
    Candidate,
    ModelFacts,
    Rehearsal,
    Sketch,
    SketchedParameter,
    Sketcher,
)
from dream.tools.plan.traffic import normalised

_VALUES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
_TOLD = 4 * MESSAGE
"""Bytes of float32 that travel with the gradients: the loss, and what ranks tell one another."""
_NUMPY = ".numpy() is not supported"
"""What torch says where a tensor without values is to be an array."""


def make_sketcher(build: Callable[[], Any], training: TrainingSpec) -> TorchSketcher:
    """Return the model that `build` gives, its tensors without memory."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, _explained():
        found = example(build())
        cast_model(found.model, training.precision)
    return TorchSketcher(build, found, mode, training)


@final
class TorchSketcher(Sketcher):
    def __init__(
        self,
        build: Callable[[], Any],
        found: Example,
        mode: FakeTensorMode,
        training: TrainingSpec,
    ) -> None:
        self._build = build
        self._example, self._mode, self._training = found, mode, training

    def told(self) -> ModelFacts:
        return ModelFacts(
            "torch", "torch", self._example.samples, self._example.named, STRATEGY_KINDS
        )

    def sketch(self, batch: int) -> Sketch:
        with self._mode, _explained():
            return self._sketch(batch)

    def rehearse(self, candidate: Candidate, batch: int) -> list[Rehearsal] | None:
        split = candidate.kind in ("tensor", "pipeline")
        if not split and not (candidate.kind == "sharded" and candidate.zero > 1):
            return None
        try:
            with _explained():
                return rehearse(self._build, self._training, candidate, batch)
        except (ConfigurationError, Unsupported):
            raise
        except Exception as error:
            raise Unsupported(
                f"The model's step under {candidate.request} does not run without values. "
                f"Received: {type(error).__name__}: {error}. Try it with `dream compare`."
            ) from error

    def _sketch(self, batch: int) -> Sketch:
        model = self._example.model.train()
        precision = self._training.precision
        *inputs, target = tree_map(
            lambda x: cast_batch(x, precision) if isinstance(x, torch.Tensor) else x,
            self._example.batch_of(batch),
        )
        if not inputs:
            inputs = [target]
        model.zero_grad(set_to_none=True)
        recompute(model, self._training.recompute, torch.is_grad_enabled)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = make_optimizer(self._training.optimizer, trained, fused=self._training.fused)
        ledger = Ledger(describes=self._training.timed)
        given = [x for x in tree_leaves((inputs, target)) if isinstance(x, torch.Tensor)]
        ledger.ignore([*model.parameters(), *model.buffers(), *given])
        with ledger:
            with precision_context(precision):
                output = model(*inputs)
                value = self._example.loss(output, target)
            held = ledger.alive()
            ledger.phase = "backward"
            value.backward()
            ledger.phase = "update"
            optimizer.step()
        gradients = {ledger.number(p.grad) for p in trained if p.grad is not None}
        states = [x for x in tree_leaves(list(optimizer.state.values())) if _is_tensor(x)]
        found = peaks(ledger, gradients, {ledger.number(x) for x in states})
        fed = sum(map(size, given))
        return Sketch(
            batch=batch,
            parameters=self._parameters(),
            ops=tuple(ledger.done),
            buffers=sum(size(x) for x in _distinct(model.buffers())),
            told=_TOLD,
            running=sum(size(x) for x in batch_norm.running(_by_themselves(model))),
            normalised=tuple(
                sum_
                for norm in model.modules()
                if isinstance(norm, _BatchNorm)
                for sum_ in normalised(norm.num_features, 4)
            ),
            state=sum(size(x) for x in _distinct(states)),
            inputs=fed,
            saved=sum(ledger.made[number] for number in held),
            forward_peak=fed + found.forward,
            backward_peak=fed + found.backward,
            joint_peak=fed + found.joint,
            update_peak=fed + found.update,
            left=fed + found.left,
            largest=max(ledger.made, default=0),
        )

    def _parameters(self) -> tuple[SketchedParameter, ...]:
        return tuple(
            SketchedParameter(
                name=name,
                elements=p.numel(),
                rows=len(p) if p.dim() else 1,
                itemsize=p.element_size(),
                trained=p.requires_grad,
            )
            for name, p in self._example.model.named_parameters()
        )


def _distinct(tensors: Any) -> list[torch.Tensor]:
    return list({x.untyped_storage()._cdata: x for x in tensors}.values())


def _is_tensor(x: object) -> bool:
    return isinstance(x, torch.Tensor)


@contextmanager
def _explained() -> Iterator[None]:
    """Errors of what needs values, in words."""
    try:
        yield
    except _VALUES as error:
        raise _asked_for(error) from error
    except RuntimeError as error:
        if _NUMPY not in str(error):
            raise
        raise _asked_for(error) from error


def _asked_for(error: Exception) -> ConfigurationError:
    return ConfigurationError(
        "The model is built and run without values, and something asked for one. Received: "
        f"{error}. Remove .item(), .tolist(), .numpy(), masks as indices and prints of tensors in "
        "the function, the model's forward and the loss."
    )


def _by_themselves(model: nn.Module) -> list[nn.Module]:
    """Return the normalisations whose statistics replicas average, since each sees its own
    share."""
    return [norm for norm in batch_norm.norms(model) if not isinstance(norm, _BatchNorm)]
