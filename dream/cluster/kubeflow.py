"""Where Kubeflow Trainer wants to be told how far a job is (its proposal KEP-2779)."""

from __future__ import annotations

import os
from typing import NamedTuple, final

URL = "KUBEFLOW_TRAINER_STATUS_URL"
CERTIFICATE = "KUBEFLOW_TRAINER_STATUS_CA_CERT"
TOKEN = "KUBEFLOW_TRAINER_STATUS_TOKEN"


@final
class StatusAddress(NamedTuple):
    """Where a job's state is told to Kubeflow, and by which right.

    certificate, token: files, of those that sign the server's certificate, and with what to show
    it; empty where none is named.
    """

    url: str
    certificate: str
    token: str


def status_address() -> StatusAddress | None:
    """Return the address that the environment names; None where it names none."""
    url, certificate, token = (os.environ.get(name, "") for name in (URL, CERTIFICATE, TOKEN))
    return StatusAddress(url, certificate, token) if url else None
