"""How an update is made, in words that mean the same in every framework."""
