"""What a real comparison wrote, by `dream compare --json recorded.json`, and beside it rows that it
had none of: one with a slow worker, one on more replicas than cores, one that was skipped."""

import json
from itertools import takewhile
from pathlib import Path

RECORDED = Path(__file__).parent / "recorded.json"
_FIRST_OF_THOSE_THAT_RAN = "samples_per_second"


def figures():
    read = json.loads(RECORDED.read_text())
    served = next(c for c in read["cells"] if c["strategy"] == "parameter_server")
    slow = {"slow": {"rank": 1, "factor": 4.0}, "speed_kept": 0.61}
    read["cells"] += [
        served | slow | {"title": "parameter_server, rank 1 slowed 4x"},
        served | {"replicas": 4, "correctness_only": True},
        _skipped(served),
    ]
    read["summary"]["slow"] = "With rank 1 slowed 4x: those that do not wait keep 61%."
    return read


def _skipped(row):
    """Only what is told of rows that did not run."""
    told = dict(takewhile(lambda item: item[0] != _FIRST_OF_THOSE_THAT_RAN, row.items()))
    blank = dict.fromkeys(("speed_against_single", "speed_told_from_single", "seconds_to_score"))
    blank |= dict.fromkeys(("largest_parameter_difference", "score_reached"))
    reason = "tensorflow cannot use this reduction. Received: reduction='gloo'. Use one of: auto."
    return told | blank | {"verdict": "skipped", "reason": reason, "good": True}
