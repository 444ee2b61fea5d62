"""One process with many devices: replicas in threads, and what rows of split layers share."""
