"""What the ranks of a job do together: collectives on torch, TensorFlow and NumPy tensors alike.

A `Communicator` checks and composes; a `Wire` carries flat buffers; `Tensors` is what a framework
can do with its own tensors. Before a byte moves, the ranks compare on a `Board` what they are
about to do. `Links` carry what goes from one rank to another.
"""

from .communicator import Communicator
from .handle import Handle
from .hierarchical import Hierarchical
from .members import Members
from .tensors import Tensors
from .wire import Loop, Op, Tensor, Wire

__all__ = [
    "Communicator",
    "Handle",
    "Hierarchical",
    "Loop",
    "Members",
    "Op",
    "Tensor",
    "Tensors",
    "Wire",
]
