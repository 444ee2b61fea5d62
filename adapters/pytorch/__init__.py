"""The pytorch adapters."""
