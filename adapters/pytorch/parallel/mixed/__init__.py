"""Jobs whose ranks are of two frameworks: one sum at the end of backward."""
