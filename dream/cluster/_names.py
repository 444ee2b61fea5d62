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

TOKEN = "DREAM_TOKEN"
"""* The word that a client of the store must know; `dream run` makes one up on one host."""

HOSTS = "DREAM_HOSTS"
"""The hosts' names in node order, with commas."""

STARTUP_SECONDS = "DREAM_STARTUP_SECONDS"
"""* How long ranks wait for one another at the start (60)."""

STALL_SECONDS = "DREAM_STALL_SECONDS"
"""* How long ranks wait in a call of the communicator for one that does not come (60)."""

RECORD = "DREAM_RECORD"
"""What `dream verify` has this rank write down, and where: a Request as JSON."""

SNAPSHOTS = "DREAM_SNAPSHOTS"
"""The folder that `dream run` keeps for a job's snapshots until it ends."""
