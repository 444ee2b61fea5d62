"""What `dream verify` sees of training, and takes out of it."""
