"""A rank as Horovod's own launcher starts one: the ring is joined, twice, and values are told."""

from __future__ import annotations

import json

import torch

import dream
from dream import cluster

ranks = dream.communicator("horovod")
place = cluster.detect()
total = ranks.all_reduce(torch.full((3,), float(ranks.rank + 1)), "sum")
told = ranks.all_gather_object(("rank", ranks.rank))
again = dream.communicator("horovod").all_reduce(torch.ones(2), "sum")
print(json.dumps([total.tolist(), told, again.tolist(), str(place.rendezvous)]))
