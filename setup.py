"""The packages, which lie in two folders: `adapters/` installs as `dream.adapters`. Everything else
is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[
        "dream",
        *(f"dream.{name}" for name in find_packages("dream")),
        "dream.adapters",
        *(f"dream.adapters.{name}" for name in find_packages("adapters")),
    ]
)
