"""`dream compare`: train one task over frameworks x strategies, and judge each row by `single`."""
