"""Describe models in words that mean the same in every framework."""
