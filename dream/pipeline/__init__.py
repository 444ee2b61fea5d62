"""Models in stages, whatever the framework: where they are cut, who runs what when, messages."""
