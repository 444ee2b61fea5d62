"""How a rank reads its part of the data: of samples that are picked, and of streams."""
