"""A rank that waits for what another is to send, which dies before it has sent a word: FOLDER."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dream import DreamError, cluster
from dream.collectives.links import links_of
from dream.collectives.peers import Peers

place = cluster.detect()
links = links_of(place)
cluster.meet(place, "links")
if place.rank:
    (Path(sys.argv[1]) / "died").touch()
    os._exit(9)
while not (Path(sys.argv[1]) / "died").exists():
    pass
try:
    Peers(links, (0, 1), "all", check=True).receive_now(1, None)
except DreamError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
