"""What lies on the disk, or in memory as on one: a folder a checkpoint, its files, and who writes
which of them."""
