"""Show how far a long loop has come: on rank 0, for eyes and for TensorBoard."""
