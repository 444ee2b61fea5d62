"""What TensorFlow's convolutions take on a CPU besides their tensors, while they run.

Backward lays patches of images out in rows (tensorflow/core/kernels/conv_grad_filter_ops.cc and
conv_grad_input_ops.h): as many images at a time as fill a working set, even where the batch has
fewer. The set is 30 MiB for the filter's gradient, the CPU's L3 cache for the input's.
"""

from __future__ import annotations

import os
from math import prod
from typing import Any

from dream.launch.environment import cores

_FILTER, _INPUT = "Conv2DBackpropFilter", "Conv2DBackpropInput"
_SET = 30 << 20
_L2, _L3 = 191, 194
"""As glibc numbers what sysconf tells of caches; Python has no names for them."""


def workspace(op: Any) -> int:
    """Bytes; 0 for what takes none."""
    if op.type not in (_FILTER, _INPUT) or not _is_needed(op):
        return 0
    kernel = (op.outputs[0] if op.type == _FILTER else op.inputs[1]).shape.as_list()
    images = op.inputs[2].shape.as_list()
    if None in kernel or None in images:
        return 0
    patch, pixels = prod(kernel[:-1]), prod(images[1:3])
    itemsize = op.inputs[2].dtype.size
    work = pixels * patch + pixels * kernel[-1] + patch * kernel[-1]
    together = max(1, -(-_working_set(op, images[0], work, itemsize) // (work * itemsize)))
    return int(together * pixels * patch * itemsize)


def _is_needed(op: Any) -> bool:
    """The gradient of the model's own input is traced, and then left out by TensorFlow."""
    return op.type == _FILTER or bool(op.outputs[0].consumers())


def _working_set(op: Any, samples: int, work: int, itemsize: int) -> int:
    """Bytes. One image at a time where it is worth all threads by itself."""
    if op.type == _FILTER:
        return _SET
    alone = samples == 1 or work // cores() >= os.sysconf(_L2) // itemsize
    return 0 if alone else os.sysconf(_L3)
