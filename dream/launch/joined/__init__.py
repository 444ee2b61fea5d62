"""What `dream run` gives its ranks, for those that somebody else has started: their share of the
cores, the name of the one that failed first, and what TensorFlow needs before its first operation.
"""
