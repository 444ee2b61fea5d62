"""`dream.strategy("auto", plan=FILE)`: what `dream plan --json FILE` found best for a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dream._errors import ConfigurationError
from dream._log import logger
from dream._topology import Cluster
from dream.strategies import spec as specs

AUTO = "auto"


def taken(given: Mapping[str, object], place: Cluster) -> tuple[str, dict[str, object]]:
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
    request, planned = _read(Path(file))
    devices = given.get("devices")
    here = place.world_size * (devices if isinstance(devices, int) else 1)
    if planned != here:
        raise ConfigurationError(
            f"This plan chooses {request} for {planned} device(s). Received: {file}, and {here} "
            f"here. Start that many ranks, or plan again with --devices {here}."
        )
    name, options = specs.parse_request(request)
    logger.info("strategy 'auto' takes %s, as %s does", request, file)
    return name, options | given


def _read(file: Path) -> tuple[str, int]:
    """What to take, and on how many devices."""
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
            return str(take["strategy"]), int(take["devices"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"This is not a plan written by `dream plan --json`. Received: {file}. Run dream plan "
            "again."
        ) from error
    raise ConfigurationError(f"No candidate in this plan fits. Received: {file}. {sentence}")
