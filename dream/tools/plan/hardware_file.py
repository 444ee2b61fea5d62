"""Read hardware of the user's own from a file: TOML or JSON, in the units of datasheets."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from dream._errors import ConfigurationError
from dream.files import sizes
from dream.tools.plan.hardware import BANDWIDTH_REACHED, FLOPS_REACHED, Hardware, made

SUFFIXES = (".toml", ".json")
_DTYPES = ("float32", "tfloat32", "bfloat16", "float16")
_NEEDED = {
    "memory": "of a device, like '80GB'",
    "tflops": "peaks by precision, like {float32 = 19.5, bfloat16 = 312}",
    "bandwidth": "of a device's memory, GB/s",
    "per_host": "devices in a host",
    "link": "between devices of a host, GB/s one way",
    "link_latency": "of that link, microseconds",
    "network": "of a host, Gbit/s",
}
_OPTIONAL = {
    "name": "as it is shown",
    "source": "where the figures are from",
    "flops_reached": "share of the peaks, between 0 and 1",
    "bandwidth_reached": "the same of bandwidths",
    "host_link": "of a device to its host's memory, GB/s one way",
}


def is_file(name: str) -> bool:
    """Whether this names a file, and no preset."""
    return name.endswith(SUFFIXES)


def read(place: str) -> Hardware:
    """Return the hardware that a file describes.

    Raises:
        ConfigurationError: there is no such file, or a figure in it is missing, unknown or bad.
    """
    given = _parsed(Path(place))
    for key in given:
        if key not in _NEEDED and key not in _OPTIONAL:
            known = ", ".join([*_NEEDED, *_OPTIONAL])
            raise _bad(place, f"{key!r}, which is none of: {known}", "Remove it")
    for key, what in _NEEDED.items():
        if key not in given:
            raise _bad(place, f"no {key!r}", f"Give {key}: {what}")
    memory, peaks = given["memory"], given["tflops"]
    if not isinstance(memory, str):
        raise _bad(place, f"memory={memory!r}", "Write it with its unit, like '80GB'")
    if not isinstance(peaks, dict) or not peaks or not set(peaks) <= set(_DTYPES):
        raise _bad(place, f"tflops={peaks!r}", f"Give peaks by precision, of {', '.join(_DTYPES)}")
    rates = {dtype: _number(place, peaks, dtype) for dtype in peaks}
    per_host = _number(place, given, "per_host")
    if per_host != int(per_host):
        raise _bad(place, f"per_host={per_host}", "Give a whole number of devices")
    return made(
        str(given.get("name", Path(place).stem)),
        sizes.parse(memory) / (1 << 30),
        rates,
        _number(place, given, "bandwidth"),
        int(per_host),
        (_number(place, given, "link_latency") * 1e-6, _number(place, given, "link")),
        _number(place, given, "network") / 8,
        (f"{place}: {given.get('source', 'figures of your own')}",),
        flops_reached=_share(place, given, "flops_reached", FLOPS_REACHED),
        bandwidth_reached=_share(place, given, "bandwidth_reached", BANDWIDTH_REACHED),
        host_link=_number(place, given, "host_link") if "host_link" in given else None,
    )


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ConfigurationError(
            f"This hardware cannot be read. Received: --hardware {path}, {error.strerror}. Give a "
            "file, or a preset's name."
        ) from error
    except ValueError as error:
        raise _bad(str(path), str(error), f"Write {path.suffix[1:].upper()}") from error
    if not isinstance(found, dict):
        raise _bad(str(path), f"a {type(found).__name__}", "Write names and figures")
    return cast("dict[str, Any]", found)


def _number(place: str, given: Mapping[str, Any], key: str) -> float:
    value = given[key]
    right = isinstance(value, int | float) and not isinstance(value, bool)
    if not right or not 0 < value < math.inf:
        raise _bad(place, f"{key}={value!r}", "Give a number above 0")
    return float(value)


def _share(place: str, given: Mapping[str, Any], key: str, otherwise: float) -> float:
    found = _number(place, given, key) if key in given else otherwise
    if found > 1:
        raise _bad(place, f"{key}={found}", "Give a share, at most 1")
    return found


def _bad(place: str, received: str, cure: str) -> ConfigurationError:
    return ConfigurationError(
        f"This file describes no hardware. Received: {place}, {received}. {cure}."
    )
