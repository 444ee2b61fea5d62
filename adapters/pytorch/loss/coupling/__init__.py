"""What couples the samples of a batch, outside the graph of its loss: it is said, never trained on
in silence."""
