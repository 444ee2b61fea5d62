"""A Keras model in the words of every framework: its layers, their order, roles and layouts."""
