"""`dream collectives`: time the communicator's collectives over each transport of this machine."""
