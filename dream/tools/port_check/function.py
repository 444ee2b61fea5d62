"""`dream.port_check`: is one model the other's port? For notebooks and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dream.tools.port_check.verdict import Report


def port_check(
    old: str | Callable[[], Any],
    new: str | Callable[[], Any],
    batch: Mapping[str, ArrayLike],
    *,
    map: Mapping[str, str] | None = None,
    tolerance: float | None = None,
    loss: str = "mean_squared",
    seed: int = 0,
    as_is: bool = False,
    copy: bool = True,
    shake: bool = True,
    old_backend: str | None = None,
    new_backend: str | None = None,
    timeout: float = 300.0,
) -> Report:
    """Whether two models, given the same weights, give the same outputs and the same gradients.

    old, new: build the models, each in a process of its own and of either framework:
        "file.py:function", "module:function", or the function itself. A function of a script
        runs that script up to its `if __name__ == "__main__":`.
    batch: `x` (or `x0`, `x1`, ... by position, or the models' own names) and perhaps `y`. Arrays
        of four or more dims have their channels last and are turned for a model that has them in
        axis 1, as are those of three dims where the model begins with a Conv1d; as_is: none is.
    map: old name -> new name, of layers or parameters; the rest is matched by the order of calls.
    tolerance: relative, for everything; else 32 roundings of the dtype, times the root of the
        number of layers passed.
    loss: "mean_squared", against y or targets that `seed` draws, or "cross_entropy" of logits
        against class numbers y.
    copy: the new model gets the old one's weights; False: it keeps its own, and they are compared.
    shake: what is all one number in the old model, as fresh biases and statistics are, gets
        others that `seed` draws, in both models, since zeros hide what is done with them.
    old_backend, new_backend: Keras's, else KERAS_BACKEND. timeout: seconds for one answer.
    Raises ConfigurationError where the layers do not match, Unsupported for a layer whose
    parameters no other framework can have, and WorkerFailed where a model cannot be built or run.
    """
    from dream.tools.port_check.check import Request, run  # on use: `import dream` loads no NumPy

    request = Request.made(
        old, new, batch, mapping=map, tolerance=tolerance, loss=loss, seed=seed, as_is=as_is,
        copy=copy, shake=shake,
    )  # fmt: skip
    return run(request, (old_backend, new_backend), timeout)
