"""The pictures, each with a title, and in words how to read it and how it was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dream.tools.compare.page import curves, parts, speeds
from dream.tools.compare.page.shown import Shown, finished

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Picture:
    """name: of its file; how: what is drawn and how it was measured; of_script: the same where a
    script is compared, if it is another; able: whether there is anything to draw."""

    name: str
    title: str
    how: str
    draw: Callable[[Sequence[Shown]], Figure]
    of_script: str = ""
    able: Callable[[Sequence[Shown]], bool] = bool

    def told(self, figures: Mapping[str, Any]) -> str:
        """How it is read in a comparison."""
        return (figures["job"] is None and self.of_script) or self.how


_OVERLAP = (
    "Where lines overlap, the rounds tell nothing apart. Hollow: more replicas than cores, which "
    "shows what is right and not what is fast."
)
PICTURES: Sequence[Picture] = (
    Picture(
        "losses",
        "Does every row learn the same?",
        "Top: the mean training loss of every epoch, over all samples of all replicas; lines that "
        "lie on each other are the point. Bottom: how far a row's loss is from single's in the "
        "same framework; what is exactly equal lies on 0.",
        curves.losses,
        "Top: the training loss of every step, the mean over all replicas; lines that lie on each "
        "other are the point. Keras tells the mean since its epoch began. Bottom: how far a row's "
        "loss is from single's; what is exactly equal lies on 0.",
    ),
    Picture(
        "scores",
        "How soon is every row good?",
        "The score on the test set after every epoch, by the seconds since the first step began, "
        "on rank 0 in the first round; what the tests took is left out.",
        curves.scores,
        able=lambda rows: any(row.said["test_scores"] for row in rows),
    ),
    Picture(
        "throughput",
        "How fast is every row?",
        "Samples a second: the dot is the median of the rounds, the line goes from the slowest to "
        f"the fastest round. {_OVERLAP}",
        speeds.throughput,
        "Steps a second: the dot is the median of the rounds, the line goes from the slowest to "
        f"the fastest round. {_OVERLAP}",
        able=lambda rows: any(row.speeds for row in rows),
    ),
    Picture(
        "scaling",
        "What do more replicas bring?",
        "The same global batch, shared by more replicas. Efficiency: samples a second, divided by "
        "replicas times those of single; 1 would be perfect. Hollow: more replicas than cores.",
        speeds.scaling,
        "The script's own batches, shared by more replicas. Efficiency: steps a second, divided by "
        "replicas times those of single; 1 would be perfect. Hollow: more replicas than cores.",
        able=speeds.scales,
    ),
    Picture(
        "split",
        "Where does a step's time go?",
        "Input: the mean time to have the next batch, in a pass after training in which nothing is "
        "trained. Communication: the median time of one all_reduce of as many bytes as the "
        "gradients have, by itself, over the same transport, in the same ranks. The rest of the "
        "measured step is computing and waiting. Where input or communication overlaps with "
        "computing, as frameworks try to have it, more is computed than is drawn. What the parts "
        "of a split model tell each other, or workers their servers, is not read apart. "
        "Start-up is paid once: from the command to the end of the first step.",
        parts.split_time,
        "The mean time from a step to the next, after the warm-up: computing, communication and "
        "input together, which are not read apart in a script that runs unchanged. Start-up is "
        "paid once: from the command to the first step.",
    ),
    Picture(
        "memory",
        "How much memory does a rank take?",
        "Resident memory of the largest rank: at rest once the framework was imported, and what "
        "training added to it at its peak, the data included. Dots: every rank's peak.",
        parts.memory,
    ),
    Picture(
        "bytes",
        "How much do ranks tell each other?",
        "Bytes that a rank sent over its TCP sockets in a step after the warm-up, as the system "
        "counts them, framing and small figures included; the mark is what the formula asks for. "
        "Memory that ranks share is no socket: nothing is counted there.",
        parts.sent,
    ),
)


def drawn(figures: Mapping[str, Any]) -> list[tuple[Picture, Figure]]:
    """Every picture for which there are figures; none where no row finished."""
    from matplotlib import rc_context

    from dream.tools.compare.page import style

    rows = finished(figures)
    with rc_context(style.rc()):
        listed = [picture for picture in PICTURES if rows and picture.able(rows)]
        return [(picture, picture.draw(rows)) for picture in listed]
