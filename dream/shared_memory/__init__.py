"""Collectives over memory that the ranks of one host share: the native core, from Python.

It works on addresses and counts, so that any framework's CPU tensors and NumPy's arrays can use
it. `native/dream_shared.h` is the core's own interface, for those who are not Python.
"""

from . import groups
from .codes import CARRIES, OPERATIONS
from .group import Group
from .library import Status, status
from .meeting import connect

__all__ = ["CARRIES", "OPERATIONS", "Group", "Status", "connect", "groups", "status"]
