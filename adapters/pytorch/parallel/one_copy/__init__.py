"""Replicas of one host that hold their parameters and their optimizer state once."""
