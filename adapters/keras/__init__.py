"""The keras adapters."""
