"""Knobs in torch: how an update is made. One file an idea; a strategy holds them in `Training`."""
