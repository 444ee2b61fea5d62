"""How far a job is, told to whoever has started it and gives an address for that."""

from __future__ import annotations

import atexit
import json
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import final
from urllib.request import Request, urlopen

from dream._log import logger
from dream.cluster.kubeflow import URL, StatusAddress, status_address
from dream.stall.status import RankStatus

_EVERY = 10.0
_TIMEOUT = 5.0
_FAILED = (
    "Kubeflow Trainer is not told how far the job is. Received from %s (%s): %s. Training goes on, "
    "and so do attempts, each %g s"
)


def tell(status: Callable[[], RankStatus]) -> None:
    """Have the address that the environment names, if any, be told how far this rank is, until the
    process ends. To be called on rank 0. status: gives where it stands."""
    address = status_address()
    if address is not None:
        teller = _Teller(address, status)
        threading.Thread(target=teller.run, name="dream-progress", daemon=True).start()
        atexit.register(teller.end)


def message(status: RankStatus) -> bytes:
    """Return what is told: training steps so far, and samples a second of all ranks, of late."""
    metrics = {"step": f"{status.steps}", "samples_per_second": f"{status.samples:.1f}"}
    told = {
        "metrics": [{"name": name, "value": value} for name, value in metrics.items()],
        "lastUpdatedTime": datetime.now(UTC).isoformat(),
    }
    return json.dumps({"trainerStatus": told}).encode()


@final
class _Teller:
    def __init__(self, address: StatusAddress, status: Callable[[], RankStatus]) -> None:
        self._address, self._status = address, status
        self._over, self._said = threading.Event(), False

    def run(self) -> None:
        while not self._over.wait(_EVERY):
            self._tell()

    def end(self) -> None:
        """Tell how far it has come at last."""
        self._over.set()
        self._tell()

    def _tell(self) -> None:
        try:
            _post(self._address, message(self._status()))
        except (OSError, ValueError) as error:  # one of urllib's is an OSError
            if not self._said:
                self._said = True
                logger.warning(_FAILED, self._address.url, URL, error, _EVERY)


def _post(address: StatusAddress, told: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    if address.token:  # read each time: it is renewed
        headers["Authorization"] = f"Bearer {Path(address.token).read_text().strip()}"
    https = address.url.startswith("https:")
    trusted = ssl.create_default_context(cafile=address.certificate or None) if https else None
    request = Request(address.url, data=told, headers=headers, method="POST")
    with urlopen(request, timeout=_TIMEOUT, context=trusted):
        pass
