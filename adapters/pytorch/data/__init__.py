"""Loaders: every global batch dealt to the ranks, and where a pass over the data stands."""
