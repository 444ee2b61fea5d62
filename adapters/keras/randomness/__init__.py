"""Random numbers as one device draws them: orders, and what is drawn in a step."""
