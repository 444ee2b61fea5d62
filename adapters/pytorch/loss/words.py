"""What is said of a loss, once each."""

from __future__ import annotations

from collections.abc import Sequence

from dream._errors import Unsupported
from dream._log import logger
from dream.adapters.pytorch.loss.terms import Term


def say(terms: Sequence[Term], said: set[str], *, strict: bool) -> None:
    """Say once what was not understood of a loss, or taken for granted."""
    for term in terms:
        if term.unknown and term.unknown not in said:
            said.add(term.unknown)
            what = (
                f"The loss counts as a mean over samples, since what {term.unknown} divides by "
                "cannot be told. "
            )
            advice = (
                "Weigh it by strategy.weigh(loss, count), give train_step(weight=...), or "
                "gather the outputs by strategy.communicator.all_gather."
            )
            if strict:
                raise Unsupported(f"{what}Received: strict=True. {advice}")
            logger.info("%s%s", what[0].lower() + what[1:], advice)
        if term.noticed:
            tell_once(f"the loss is a sum, {term.noticed}", said)


def tell_once(what: str, said: set[str]) -> None:
    if what not in said:
        said.add(what)
        logger.info("%s", what)
