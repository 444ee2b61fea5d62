"""Build a model in a process of its own, and answer what is asked of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Set
from typing import final

from dream.model_description.layers import from_canonical, to_canonical
from dream.model_description.steps import OPS
from dream.strategies import registry
from dream.tools import frameworks, user_code
from dream.tools.model_process import serve
from dream.tools.port_check import probe
from dream.tools.port_check.probe import Array, Facts, Inputs, ModelPasses, Probe, Weights


@final
class PortCheckWorker:
    """One model at a time. Its methods are what can be asked."""

    _probe: Probe
    _facts: Facts

    def build(self, place: str, inputs: Inputs, as_is: bool) -> Facts:
        """Build the model and show it the inputs."""
        model = user_code.build_model(place)
        probe = registry.load(frameworks.PROBES[user_code.flavour(model)])
        self._probe = probe(model, inputs, as_is=as_is)
        self._facts = self._probe.facts()
        return self._facts

    def keep_order(self, names: Set[str]) -> Facts:
        """Have these layers count a flattened map in the order that they are given it."""
        self._probe.keep_order(names)
        self._facts = self._probe.facts()
        return self._facts

    def weights(self) -> Weights:
        """Read all values, by layer and role."""
        arrays = self._probe.read()
        return {
            layer.name: to_canonical(layer, arrays, OPS) for layer in self._facts.description.layers
        }

    def load(self, weights: Mapping[str, Mapping[str, Array]]) -> None:
        """The inverse, for those named."""
        for layer in self._facts.description.layers:
            if layer.name in weights:
                self._probe.write(from_canonical(layer, weights[layer.name], OPS))

    def passes(self, name: str, y: Array | None, seed: int) -> ModelPasses:
        return self._probe.passes(probe.make_loss(name, y, seed))


if __name__ == "__main__":
    serve(sys.argv[2], PortCheckWorker())
