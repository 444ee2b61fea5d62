"""A job that does one thing: an all-reduce over its ranks."""

import torch
from torch import distributed

distributed.init_process_group("gloo")
one = torch.ones(1)
distributed.all_reduce(one)
assert one.item() == distributed.get_world_size()
distributed.destroy_process_group()
