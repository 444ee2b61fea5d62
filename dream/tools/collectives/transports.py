"""Which transports there are here, for each framework."""

from __future__ import annotations

from collections.abc import Sequence

from dream import _here, _spec
from dream._errors import NotInstalled, Unsupported, unknown
from dream._spec import FRAMEWORKS, Framework

_ON_DEVICES = ("nccl",)
"""They move what lies on GPUs, and what is measured lies in the host's memory."""

Plan = dict[Framework, list[str]]
"""Framework -> its transports, in the order of the table."""


def plan(frameworks: Sequence[Framework], asked: Sequence[str]) -> Plan:
    """What is measured. frameworks, asked: empty for all that work here."""
    for name in asked:
        _check(name)
    found = {one: _of(one, asked) for one in frameworks or _installed()}
    if frameworks:
        for framework in frameworks:
            if not found[framework]:
                raise _none(framework, asked)
    chosen = {framework: names for framework, names in found.items() if names}
    if not chosen:
        raise NotInstalled(
            "There is nothing to measure here. Received: --reduction "
            f"{','.join(asked) or 'of any kind'}, installed: {', '.join(_installed()) or 'none'}. "
            "Run: pip install 'dream-systems[torch]'; `dream strategies` lists what works."
        )
    return chosen


def _installed() -> list[Framework]:
    return [framework for framework in FRAMEWORKS if _here.installed(framework)]


def _names(framework: Framework) -> tuple[str, ...]:
    return _spec.find("mirrored").reductions[framework]


def _check(name: str) -> None:
    known = dict.fromkeys(name for framework in FRAMEWORKS for name in _names(framework))
    if name not in known:
        raise unknown("reduction", name, [name for name in known if name not in _ON_DEVICES])
    if name in _ON_DEVICES:
        raise Unsupported(
            "Only what lies in the host's memory is measured. Received: --reduction "
            f"{name}. Use NVIDIA's nccl-tests for it."
        )


def _of(framework: Framework, asked: Sequence[str]) -> list[str]:
    """Those of a framework that work here. What was asked for by name must."""
    spec = _spec.find("mirrored")
    found = []
    for name in _names(framework):
        if name in _ON_DEVICES or (asked and name not in asked):
            continue
        obstacle = _here.obstacle(spec, framework, name)
        if not obstacle:
            found.append(name)
        elif asked:
            raise NotInstalled(
                f"This transport cannot run here. Received: --reduction {name} with {framework}. "
                f"Run: {obstacle}"
            )
    return found


def _none(framework: Framework, asked: Sequence[str]) -> Exception:
    if not _here.installed(framework):
        return NotInstalled(
            f"{framework} is not installed. Received: --framework {framework}. "
            f"Run: pip install 'dream-systems[{framework}]'"
        )
    known = [name for name in _names(framework) if name not in _ON_DEVICES]
    return Unsupported(
        f"{framework} has none of these transports. Received: --reduction {','.join(asked)}. Use "
        f"one of: {', '.join(known)}."
    )
