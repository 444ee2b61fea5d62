"""The embedded tasks of `dream compare`, as a PyTorch user writes them."""
