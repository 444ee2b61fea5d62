"""Losses, and leaves of a graph, that are of single samples: added up by a loop, or of no row at all."""
