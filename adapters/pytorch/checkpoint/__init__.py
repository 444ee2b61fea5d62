"""What is kept of a torch training, and what is not."""
