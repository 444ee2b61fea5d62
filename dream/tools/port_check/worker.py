"""What runs in a process of its own: builds models and answers what is asked of them, until told
to end."""

from __future__ import annotations

import socket
import sys
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, final

from dream import _registry
from dream._errors import ConfigurationError, NotInstalled, Unsupported
from dream.tools.port_check import building, loss
from dream.tools.port_check.arrays import OPS
from dream.tools.port_check.convert import from_canonical, to_canonical
from dream.tools.port_check.probe import Array, Facts, Inputs, Passes, Probe
from dream.tools.port_check.shake import Weights

_TOLD = (ConfigurationError, Unsupported, NotInstalled)


@final
class Bench:
    """One model at a time. Its methods are what can be asked."""

    _probe: Probe
    _facts: Facts

    def build(self, place: str, inputs: Inputs, as_is: bool) -> Facts:
        """Build the model and show it the inputs."""
        model = building.build(place)
        probe = _registry.load(_registry.PROBES[building.flavour(model)])
        self._probe = probe(model, inputs, as_is=as_is)
        self._facts = self._probe.facts()
        return self._facts

    def weights(self) -> Weights:
        """All values, by layer and role."""
        arrays = self._probe.read()
        return {
            layer.name: to_canonical(layer, arrays, OPS) for layer in self._facts.description.layers
        }

    def load(self, weights: Mapping[str, Mapping[str, Array]]) -> None:
        """The inverse, for those named."""
        for layer in self._facts.description.layers:
            if layer.name in weights:
                self._probe.write(from_canonical(layer, weights[layer.name], OPS))

    def passes(self, name: str, y: Array | None, seed: int) -> Passes:
        return self._probe.passes(loss.make(name, y, seed))


def serve(connection: Connection, bench: object) -> None:
    """Answer ("gave", result), or ("told", kind, message) and ("raised", kind, traceback).

    bench: its methods are what can be asked.
    """
    while (asked := _next(connection)) is not None:
        name, arguments = asked
        try:
            connection.send(("gave", getattr(bench, name)(*arguments)))
        except _TOLD as error:
            kind = next(kind for kind in _TOLD if isinstance(error, kind))
            connection.send(("told", kind, str(error)))
        except Exception as error:
            last = "".join(traceback.format_exception(error))
            connection.send(("raised", type(error).__name__, last))


def _next(connection: Connection) -> Any:
    try:
        return connection.recv()
    except EOFError:
        return None  # the asker is gone


def main(address: str, bench: object) -> None:
    """Connect to the asker, who listens at a socket's path."""
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(address)
    with Connection(stream.detach()) as connection:
        serve(connection, bench)


if __name__ == "__main__":
    main(sys.argv[1], Bench())
