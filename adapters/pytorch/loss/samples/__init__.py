"""What is of single samples: their losses, which a loop adds up, and leaves of a graph."""
