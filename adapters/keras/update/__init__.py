"""How an update is made from the samples of all parts."""
