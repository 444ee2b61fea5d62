"""What a block meets that was not made by its rules: things made before it, and scripts and
libraries that distribute by themselves."""
