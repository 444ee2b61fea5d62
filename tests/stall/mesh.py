"""A rank that meets another of another host, which then dies before it has sent a word: FOLDER."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dream import DreamError, cluster
from dream.communication.call import Call
from dream.communication.links import links_of
from dream.communication.mesh import Mesh

place = cluster.detect()
links = links_of(place)
cluster.meet(place, "links")
if place.rank:
    (Path(sys.argv[1]) / "died").touch()
    os._exit(9)
while not (Path(sys.argv[1]) / "died").exists():
    pass
try:
    Mesh(links, (0, 1), "all").agree(Call("barrier()"))
except DreamError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
