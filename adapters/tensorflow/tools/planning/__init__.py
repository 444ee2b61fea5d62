"""TensorFlow's and Keras's part of `dream plan`: steps without values, steps with values, this
machine's rates."""
