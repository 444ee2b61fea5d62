"""Whether the models of a block are trained or evaluated."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from dream._log import logger
from dream.adapters.pytorch.call_hook import ModuleSet
from dream.adapters.pytorch.data.earlier_tensors import frames_of_script
from dream.adapters.pytorch.randomness.current import current

_OF_TRAINING = (
    "next() takes a batch of an iterator that was begun to train, and by now the models are in "
    "eval mode: a rank has its share of that batch, so a figure of it, as a loss that is logged, "
    "is of this share alone. Begin the iterator after model.eval(), or loop over the loader"
)


@final
class Modes:
    """The models of a strategy, and which of them the loop trains. passes: to train on, that have
    begun. differentiates: whether an optimizer was made, or a gradient asked for; what a loop does
    before that, it does by hand, with whole batches on every rank."""

    def __init__(self) -> None:
        self.differentiates = True
        self._made = ModuleSet()
        self._called, self._anew = ModuleSet(), ModuleSet()
        self._whole = False
        self._over = self._told = False
        self.passes = 0
        self._shapes: dict[tuple[int, ...], bool] = {}

    def add(self, module: nn.Module) -> None:
        """A module was made in the block."""
        self._made.add(module)

    def optimized(self, optimizer: Optimizer) -> None:
        """An optimizer was made. Where the models before have been evaluated by then, those that
        it steps are the next to be trained, as in another fold of a cross-validation."""
        self.differentiates = True
        if self._whole:
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            for module in self._made:
                if any(id(p) in held for p in module.parameters(recurse=False)):
                    self._anew.add(module)

    def watching(self, differentiate: Callable[..., Any]) -> Callable[..., Any]:
        """What gives gradients, which is told of."""

        @wraps(differentiate)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.differentiates = True
            return differentiate(*args, **kwargs)

        return watched

    def whole_begins(self) -> None:
        """A pass begins that gives all samples."""
        self._whole = True

    def pass_begins(self) -> None:
        """A pass to train on begins: those that it calls are the ones that count."""
        self._over, self._whole = True, False
        self._anew.clear()
        self.passes += 1

    def called(self, module: nn.Module) -> None:
        """The loop calls a model to train it."""
        if self._over:
            self._over = False
            self._called.clear()
        if module not in self._called:
            self._called.add(module)
            self._shapes.clear()

    def handed(self) -> None:
        """A pass to train on hands out a batch that ranks share. A loop that has begun in training
        may evaluate others, and train on; who asks by hand wants this batch."""
        for module in self._called:  # asked at every step
            if module.training:
                return
        if self._told or not self.evaluate() or current.is_apart():
            return
        frame = next(frames_of_script(), None)
        if frame is not None and dis.opname[frame.f_code.co_code[frame.f_lasti]] != "FOR_ITER":
            self._told = True
            logger.info(_OF_TRAINING)

    def parameters(self, shape: Sequence[int]) -> list[nn.Parameter]:
        """List the parameters of this shape that the models have which the loop trains."""
        key = tuple(shape)
        if self._shapes.get(key) is False:
            return []
        found = [p for model in self._called for p in model.parameters() if tuple(p.shape) == key]
        self._shapes[key] = bool(found)
        return found

    def evaluate(self) -> bool:
        """Whether every model that the loop last trained is in eval mode; where it has trained
        none yet, every module that holds parameters. Not where it is about to train another."""
        if not self.differentiates and not current.is_apart():  # whose reads are ahead by chance
            return True
        if any(module.training for module in self._anew):
            return False
        called = [*self._called]
        if not called:
            made = [*self._made]  # asking a model for its parameters may make some of its parts
            called = [m for m in made if next(m.parameters(recurse=False), None) is not None]
            called = [*_less_those_held_twice(called)]
        return bool(called) and not any(module.training for module in called)


def _less_those_held_twice(modules: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """Leave out dicts whose parameters are in evaluated modules too: a Keras model, and each of its
    layers, has one, and it does not pass `eval()` on to them."""
    held = {id(p) for m in modules if not m.training for p in m.parameters(recurse=False)}
    for module in modules:
        dicts = isinstance(module, nn.ParameterDict) and module.training
        if not dicts or any(id(p) not in held for p in module.parameters(recurse=False)):
            yield module
