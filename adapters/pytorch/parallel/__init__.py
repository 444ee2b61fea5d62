"""One strategy a file or folder."""
