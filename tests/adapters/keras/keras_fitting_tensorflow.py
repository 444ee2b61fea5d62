"""What TensorFlow says where micro-batches are to follow memory."""

from __future__ import annotations

import dream


def refused() -> str:
    try:
        with dream.strategy("mirrored", accumulate="auto"):
            return ""
    except dream.Unsupported as error:
        return str(error)
