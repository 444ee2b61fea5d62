"""What TensorFlow must know before its first operation: the strategy, named from outside."""

from __future__ import annotations

import sys

from dream import _framework, cluster
from dream.strategies import registry
from dream.strategies import spec as specs

_TENSORFLOW = "dream.adapters.tensorflow.runtime:set_up_early"
_watches: list[_framework.ImportWatch] = []


def watch_from_import() -> None:
    """Do so as soon as dream is imported, where no `dream run` did before the script began."""
    if cluster.requested_strategy() and not cluster.started_by_dream() and not _is_a_helper():
        watch_tensorflow()


def _is_a_helper() -> bool:
    """Whether this is a process of multiprocessing's, as of a loader: it is in no rank's place."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


def watch_tensorflow() -> None:
    """Under `--strategy`, set up what TensorFlow needs before a script's first op as soon as it is
    imported; other frameworks may come first, or TensorFlow never."""
    if cluster.requested_framework() == "torch" or _watches:
        return
    _watches.append(_framework.ImportWatch(_imported))
    if "tensorflow" in sys.modules:
        _imported()
    else:
        _watches[0].install()


def _imported() -> None:
    """A framework, or Keras, is there."""
    if "tensorflow" not in sys.modules:
        _watches.clear()
        watch_tensorflow()
    elif cluster.requested_framework() or (
        "torch" not in sys.modules and _framework.imported() == "tensorflow"
    ):
        request = cluster.requested_strategy()
        assert request is not None
        name, given = specs.parse_request(request)
        registry.load(_TENSORFLOW)(name, given)
