"""Replicas on the devices of one process, each in a thread of its own."""
