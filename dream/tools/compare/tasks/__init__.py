"""The embedded tasks: real data that ships with scikit-learn, and the weights that every framework
starts from. NumPy alone; what trains on them is each adapter's own (tasks/ or task.py)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dream._errors import unknown
from dream.tools.compare.tasks import digits, table, text
from dream.tools.compare.tasks.task import Data, Task, Weights, first_weights

__all__ = ["DEFAULT", "TASKS", "Data", "Task", "Weights", "find", "first_weights"]

DEFAULT = "digits-mlp"
TASKS: Mapping[str, Task] = MappingProxyType(
    {task.name: task for task in (digits.MLP, digits.CNN, text.TRANSFORMER, table.REGRESSION)}
)


def find(name: str) -> Task:
    """The task of a name."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]
