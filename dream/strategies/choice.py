"""Which strategy, options and framework a block takes: the command line, the script, the place,
or what `dream plan --json FILE` found best for a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dream import _framework, cluster
from dream._errors import ConfigurationError
from dream._log import logger
from dream._topology import Cluster
from dream.strategies import options as all_options
from dream.strategies import spec as specs
from dream.strategies.spec import Framework, Spec

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Randomness:
    """How a strategy orders data and draws random numbers.

    seed: fixes the order of shuffled data; None leaves the script's own. draws: whose random
    numbers a model's call draws, "global" or "local".
    """

    seed: int | None
    draws: str


def randomness(seed: object, draws: object) -> Randomness:
    """Return what a script says of random numbers, checked."""
    checked = all_options.SEED.check(seed)
    assert checked is None or isinstance(checked, int)
    return Randomness(checked, str(all_options.RANDOMNESS.check(draws)))


@dataclass(frozen=True, slots=True)
class Choice:
    """The name and options after the command line had its say."""

    spec: Spec
    reduction: str
    devices: int | None
    given: Mapping[str, object]


def strategy(name: str | None, given: dict[str, object], place: Cluster) -> Choice:
    """The strategy for this place. given: its options, `reduction` and `devices` among them."""
    request = cluster.requested_strategy()
    if name == AUTO and request is None:
        name, given = from_plan(given, place)
    if request is not None:
        name, given = _override(name, given, request)
    spec = specs.find(name or _default_name(place))
    reduction = str(specs.COMMON["reduction"].check(given.pop("reduction", "auto")))
    devices = specs.COMMON["devices"].check(given.pop("devices", None))
    spec.check_reduction(reduction)
    spec.resolve(given)
    assert devices is None or isinstance(devices, int)
    choice = Choice(spec, reduction, devices, given)
    _check_place(choice, place)
    return choice


def _override(
    name: str | None, given: dict[str, object], request: str
) -> tuple[str, dict[str, object]]:
    """The command line's name and mesh options in place of the script's; other options stay."""
    new, theirs = specs.parse_request(request)
    if name == AUTO:
        given = {key: value for key, value in given.items() if key not in ("plan", *specs.COMMON)}
        logger.info("strategy %r in place of the script's plan, as --strategy asks", request)
    elif name is not None:
        known = {**specs.COMMON, **{o.name: o for o in specs.find(name).options}}
        given = {key: value for key, value in given.items() if not _is_mesh(known, key, name)}
        logger.info("strategy %r in place of the script's %r, as --strategy asks", request, name)
    else:
        given = {key: value for key, value in given.items() if key not in specs.COMMON}
    return new, given | theirs


def _is_mesh(known: Mapping[str, specs.Option], key: str, name: str) -> bool:
    return (known[key] if key in known else specs.find(name).option(key)).mesh


def _default_name(place: Cluster) -> str:
    if place.alone:
        return "single"
    if place.servers is not None:
        return "parameter_server"
    return "mirrored" if len(place.hosts) == 1 else "multi_worker_mirrored"


def _check_place(choice: Choice, place: Cluster) -> None:
    if not choice.spec.several and not place.alone:
        raise ConfigurationError(
            f"Strategy {choice.spec.name!r} runs in one process. Received: world size "
            f"{place.world_size} from {place.source}. Start it with `dream run -n 1`, or name "
            "another strategy."
        )
    if place.servers is not None and choice.spec.update != "asynchronous":
        raise ConfigurationError(
            f"Strategy {choice.spec.name!r} has no servers. Received: {place.servers} of "
            f"{place.world_size} tasks are servers in {place.source}. Remove them, or use "
            "'parameter_server'."
        )
    if place.evaluator and choice.given.get("engine") != "tensorflow":
        raise ConfigurationError(
            "This process is an evaluator, which this strategy does not support. Received: the "
            f"task of an evaluator in {place.source}, for {choice.spec.name!r}. Start it without "
            "TF_CONFIG, on what training saves, or use 'parameter_server' with engine='tensorflow'."
        )
    if place.alone and choice.reduction != "auto":
        raise ConfigurationError(
            "A single process has nothing to reduce with. Received: "
            f"reduction={choice.reduction!r}, world size 1. Start it with `dream run -n 2`, or "
            "remove reduction."
        )


def framework(name: str | None) -> Framework | None:
    """The framework that was named here, on the command line, or by what is imported."""
    if name is not None:
        return _framework.check(name, "framework=")
    requested = cluster.requested_framework()
    if requested is not None:
        return _framework.check(requested, "DREAM_FRAMEWORK")
    return _framework.imported()


def from_plan(given: Mapping[str, object], place: Cluster) -> tuple[str, dict[str, object]]:
    """The name and options that a plan takes, and those that the script says besides.

    Raises:
        ConfigurationError: there is no plan, nothing fits in it, or it is for other devices.
    """
    given = dict(given)
    file = given.pop("plan", None)
    if not isinstance(file, (str, Path)):
        raise ConfigurationError(
            f"'auto' needs a plan file to choose from. Received: plan={file!r}. Write one by "
            "`dream plan model.py:build --devices N --json plan.json`, and pass plan='plan.json'; "
            "or remove the strategy's name, to let dream choose."
        )
    request, planned, asked = _read(Path(file))
    devices = given.get("devices")
    here = place.world_size * (devices if isinstance(devices, int) else 1)
    if planned != here:
        other = (
            "name another of its strategies"
            if asked == here
            else (f"plan again with --devices {here}")
        )
        raise ConfigurationError(
            f"This plan chooses {request} for {planned} device(s). Received: {file}, and {here} "
            f"here. Start that many ranks, or {other}."
        )
    name, options = specs.parse_request(request)
    logger.info("strategy 'auto' takes %s, as %s does", request, file)
    return name, options | given


def _read(file: Path) -> tuple[str, int, object]:
    """What to take, and on how many devices; and how many were planned for."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"This plan cannot be read. Received: {file} ({error}). Write it by `dream plan "
            f"model.py:build --devices N --json {file}`."
        ) from error
    try:
        take, sentence = found["take"], found["sentence"]
        if take is not None:
            return str(take["strategy"]), int(take["devices"]), found.get("devices")
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"This is not a plan written by `dream plan --json`. Received: {file}. Run dream plan "
            "again."
        ) from error
    raise ConfigurationError(f"No candidate in this plan fits. Received: {file}. {sentence}")
