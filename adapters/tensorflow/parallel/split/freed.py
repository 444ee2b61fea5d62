"""Memory that is free again, given back to the system.

glibc keeps what lies in holes: a model whose variables are made whole, cut and let go one by one
would leave a process as large as if it held all of them.
"""

from __future__ import annotations

import ctypes

_WORTH = 2**18
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own


def give_back(let_go: int) -> None:
    """let_go: how many bytes have just been freed."""
    if _trim is not None and let_go >= _WORTH:
        _trim(0)
