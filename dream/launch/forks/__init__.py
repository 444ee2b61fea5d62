"""Ranks that are forked from a parent which has imported their framework."""
