"""Memory that the ranks of one host share, as a transport of both frameworks.

The core and its Python side are neutral (`dream.shared_memory`); here are its wires.
"""
