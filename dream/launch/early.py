"""Under `--strategy`: what TensorFlow needs before a script's first op is set up as soon as it
is imported."""

from __future__ import annotations

import sys

from dream import _framework, _registry, _spec, cluster

SET_UP = "dream.adapters.tensorflow.runtime:set_up_early"


def watch() -> None:
    """Wait for TensorFlow's import; other frameworks may come first, or TensorFlow never."""
    if cluster.requested_framework() != "torch":
        _framework.ImportWatch(_imported).install()


def _imported() -> None:
    if "tensorflow" not in sys.modules:
        watch()
    elif _is_tensorflow():
        request = cluster.requested_strategy()
        assert request is not None
        name, given = _spec.parse_request(request)
        _registry.load(SET_UP)(name, given)


def _is_tensorflow() -> bool:
    """Whether the rank trains in TensorFlow, as far as the imports tell."""
    if cluster.requested_framework() is not None:
        return True
    return "torch" not in sys.modules and _framework.imported() == "tensorflow"
