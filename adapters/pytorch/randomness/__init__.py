"""Random numbers of one device: generators in step on all ranks, draws for the global batch."""
