"""What the ranks of a job do together: collectives on torch, TensorFlow and NumPy tensors alike.

A `Communicator` checks and composes; a `Wire` carries flat buffers; `Tensors` is what a framework
can do with its own tensors. Before a byte moves, the ranks compare on a `Board` what they are
about to do. `Links` carry what goes from one rank to another.
"""

from dream.communication.communicator import Communicator
from dream.communication.handle import Handle
from dream.communication.hierarchical import Hierarchical
from dream.communication.members import Members
from dream.communication.tensors import Tensors
from dream.communication.wire import Loop, Op, Tensor, Wire

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
