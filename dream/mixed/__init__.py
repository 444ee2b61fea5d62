"""Jobs whose ranks are of two frameworks: who is of which, and what keeps them together."""
