"""Start ranks."""
