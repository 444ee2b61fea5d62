"""The Horovod ring: how it is built, and the reduction that it offers to the other adapters."""
