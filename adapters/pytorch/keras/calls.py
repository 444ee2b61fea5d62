"""Keras models that a torch loop calls: they are distributed as torch's own modules are, so that
losses are weighed, and hold the global value, in the same way.

Keras takes its calls past `torch.nn.Module.__call__`, where dream takes those of torch's modules;
so the model's `call` is what is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dream.adapters.keras import consistency, private
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.update import batch_norm
from dream.adapters.pytorch.call_hook import CallHook, hook_of, set_hook
from dream.adapters.pytorch.loose_parameters import left_alone
from dream.adapters.pytorch.module import ModuleRegistry, Pending


def take_calls(model: Any, engine: Engine, registry: ModuleRegistry) -> None:
    """Have the model be one of the registry's when a loop of the user's own trains it; in fit and
    its like the step adds up by itself."""

    def taken(call: Callable[..., Any]) -> Callable[..., Any]:
        def together(*args: Any, **kwargs: Any) -> Any:
            here = engine.rows((args, kwargs))
            with batch_norm.global_statistics(model, engine, present=here):
                return call(*args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            if left_alone() or not registry.training_call():
                return call(*args, **kwargs)
            if not isinstance(hook_of(model), CallHook):
                batch_norm.synchronise(model, engine)
                consistency.report_local_statistics(model, engine)
                set_hook(model, Pending(model, registry, together))
            return hook_of(model)(*args, **kwargs)

        return run

    private.replace_call(model, taken)


def averaged(registry: ModuleRegistry, gradients: Sequence[Any], variables: Sequence[Any]) -> bool:
    """Whether these are the gradients that a loop's backward left in the models' variables, global
    by then. Raises for those of a backward that averaged nothing."""
    if registry.updates is not None:
        return False
    roots, found = registry.reduced(), set()
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is None:
            continue
        root = roots.get(id(variable.value))
        if root is None or variable.value.grad is not gradient:
            return False
        found.add(root)
    for root in found:
        root.backwards.check()
    return bool(found)
