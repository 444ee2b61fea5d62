"""Replicas in step across processes, carried by DistributedDataParallel."""
