"""How an update is made in torch. One file an idea; a strategy holds them in `Training`."""
