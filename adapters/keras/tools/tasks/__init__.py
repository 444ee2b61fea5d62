"""The embedded tasks of `dream compare`, as a Keras user writes them."""
