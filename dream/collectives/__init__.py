"""What the ranks of a job do together: collectives on torch, TensorFlow and NumPy tensors alike.

A `Communicator` checks and composes; a `Wire` carries flat buffers; `Tensors` is what a framework
can do with its own tensors. Before a byte moves, the ranks compare on a `Board` what they are
about to do. `Links` carry what goes from one rank to another.
"""

from dream.collectives.communicator import Communicator
from dream.collectives.members import Members
from dream.collectives.post import Handle
from dream.collectives.tensors import Tensors
from dream.collectives.transport import Hierarchical, Loop, Op, Tensor, Wire

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
