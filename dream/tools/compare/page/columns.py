"""The grid as a table of text and of what it is sorted by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from dream.tools.compare.outcome import number

Said = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """A cell of the page's table.

    text: as shown; below: in small letters below it; key: what it sorts by, a number where
    `number`; empty where nothing was read, which sorts last. mark: a class that says how it is
    meant.
    """

    text: str
    below: str
    key: str
    number: bool
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    name: str
    about: str
    number: bool


def _words(name: str) -> Callable[[Said], tuple[str, Any]]:
    return lambda said: (str(said[name] or ""), str(said[name] or ""))


def _figure(form: str, name: str, unit: float = 1.0) -> Callable[[Said], tuple[str, Any]]:
    def read(said: Said) -> tuple[str, Any]:
        value = said.get(name)
        return ("", "") if value is None else (form.format(value / unit), value)

    return read


def _speed(said: Said) -> tuple[str, Any]:
    rounds = [each for each in said.get("samples_per_second_by_round", ()) if each is not None]
    if not rounds:
        return "", ""
    value = said["samples_per_second"]
    return f"{number(value)}\n{number(min(rounds))} to {number(max(rounds))}", value


def _against(said: Said) -> tuple[str, Any]:
    value = said["speed_against_single"]
    if value is None or said["verdict"] == "the oracle":
        return "", ""
    if said["correctness_only"]:
        return "correctness only", value
    return (f"{value:.2f}x" if said["speed_told_from_single"] else "not told apart"), value


def _largest(name: str, unit: float) -> Callable[[Said], tuple[str, Any]]:
    def read(said: Said) -> tuple[str, Any]:
        values = said.get(name)
        return (f"{max(values) / unit:,.0f}", max(values)) if values else ("", "")

    return read


def _last_loss(said: Said) -> tuple[str, Any]:
    losses = said.get("losses")
    return ("", "") if not losses or losses[-1] is None else (f"{losses[-1]:.4f}", losses[-1])


def _to_score(said: Said) -> tuple[str, Any]:
    if said["score_reached"] is False:
        return "not reached", inf
    return _figure("{:.2f}", "seconds_to_score")(said)


def _staleness(said: Said) -> tuple[str, Any]:
    told = said.get("staleness")
    return (f"{told['mean']:.1f}\nmost {told['max']}", told["mean"]) if told else ("", "")


_COLUMNS: Sequence[tuple[Header, Callable[[Said], tuple[str, Any]]]] = (
    (Header("framework", "", number=False), _words("framework")),
    (Header("strategy", "", number=False), _words("title")),
    (Header("replicas", "", number=True), _figure("{:.0f}", "replicas")),
    (Header("verdict", "", number=False), _words("verdict")),
    (
        Header("difference", "largest of any parameter from single", number=True),
        _figure("{:.1e}", "largest_parameter_difference"),
    ),
    (Header("speed", "median, slowest to fastest round", number=True), _speed),
    (Header("against single", "by the medians", number=True), _against),
    (
        Header("start-up, s", "command to the end of the first step", number=True),
        _figure("{:.1f}", "start_up_seconds"),
    ),
    (
        Header("MB beyond import", "largest rank", number=True),
        _largest("bytes_beyond_import_per_rank", 1e6),
    ),
    (Header("MB in all", "largest rank", number=True), _largest("peak_bytes_per_rank", 1e6)),
    (Header("final loss", "mean over the last epoch", number=True), _last_loss),
    (Header("test score", "", number=True), _figure("{:.4f}", "test_score")),
    (
        Header("s to score", "as good as single at its end, less a point", number=True),
        _to_score,
    ),
    (Header("staleness", "updates not seen: mean, most", number=True), _staleness),
    (
        Header("speed kept", "with the slow worker", number=True),
        _figure("{:.2f}x", "speed_kept"),
    ),
    (Header("reduction", "who adds the gradients up", number=False), _words("reduction")),
)
_OF_SCRIPT = {"final loss": "of the last step; in Keras the mean of its epoch"}


def grid(figures: Said) -> tuple[list[Header], list[list[Field]]]:
    """Return the headers of a comparison and the fields of each cell, without what no cell has."""
    rows = [
        [_field(head, *read(said), said) for head, read in _COLUMNS] for said in figures["cells"]
    ]
    kept = [index for index in range(len(_COLUMNS)) if any(row[index].text for row in rows)]
    headers = [_header(_COLUMNS[index][0], figures) for index in kept]
    return headers, [[row[index] for index in kept] for row in rows]


def _header(header: Header, figures: Said) -> Header:
    if figures["job"] is not None:
        return header
    return replace(header, about=_OF_SCRIPT.get(header.name, header.about))


def _field(header: Header, text: str, key: Any, said: Said) -> Field:
    mark = ""
    if header.name == "verdict":
        ran = said.get("losses") is not None
        mark = ("good" if ran else "faint") if said["good"] else "bad"
    shown, _, below = text.partition("\n")
    return Field(shown, below, str(key), header.number, mark)
