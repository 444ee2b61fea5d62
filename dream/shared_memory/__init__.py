"""Collectives over memory that the ranks of one host share: the native core, from Python.

It works on addresses and counts, so that any framework's CPU tensors and NumPy's arrays can use
it. `native/dream_shared.h` is the core's own interface, for those who are not Python.
"""

from dream.shared_memory import groups
from dream.shared_memory.blocks import Row, block
from dream.shared_memory.failures import CARRIES, OPERATIONS
from dream.shared_memory.group import Group, Riders
from dream.shared_memory.groups import connect
from dream.shared_memory.library import Status, status

__all__ = [
    "CARRIES",
    "OPERATIONS",
    "Group",
    "Riders",
    "Row",
    "Status",
    "block",
    "connect",
    "groups",
    "status",
]
