"""The environment variables that are dream's own. A user may set those marked *.

They are dream's side of a rank's environment; torchrun's, TensorFlow's and Horovod's names stand
beside the code that reads them.
"""

from __future__ import annotations

STRATEGY = "DREAM_STRATEGY"
"""What `dream run --strategy` was given."""

FRAMEWORK = "DREAM_FRAMEWORK"
"""This rank's framework, from `dream run --framework`."""

FRAMEWORKS = "DREAM_FRAMEWORKS"
"""Every rank's framework by rank, with commas, from `dream run --framework`."""

RENDEZVOUS = "DREAM_RENDEZVOUS"
"""host:port of the store that `dream run` serves."""

RENDEZVOUS_PORT = "DREAM_RENDEZVOUS_PORT"
"""* Under another launcher: the port on which rank 0 serves the store (MASTER_PORT + 1)."""

PORT_RANGE = "DREAM_PORT_RANGE"
"""* LOW-HIGH: the ports that the job may listen on (any free one)."""

TOKEN = "DREAM_TOKEN"
"""* The word that a client of the store must know. On one host it can be left out; several that
are started by hand, by `dream run` or by torchrun need a common one."""

HOSTS = "DREAM_HOSTS"
"""The hosts' names in node order, with commas."""

STARTUP_SECONDS = "DREAM_STARTUP_SECONDS"
"""* How long ranks wait for one another at the start (60)."""

STALL_SECONDS = "DREAM_STALL_SECONDS"
"""* How long ranks wait in a call for one that lives and does not come, before that is an error
(1800, half an hour). A line says who is waited for after 60 seconds, or half of this where that is
shorter. The time in which the waiting rank was itself stopped does not count, and a rank that has
died is told at once."""

OBSERVER = "DREAM_OBSERVER"
"""What watches this rank's script: "module:function words", as `_observers.register` takes it."""

SNAPSHOTS = "DREAM_SNAPSHOTS"
"""The folder that `dream run` keeps for a job's snapshots until it ends."""
