"""The frameworks, one folder each. Installed as `dream.adapters`."""

if __name__ != "dream.adapters":
    raise ImportError(
        f"This folder is the package dream.adapters. Received: an import as {__name__!r}. "
        "Run `pip install -e .` and import dream.adapters."
    )
