"""A script for torchrun, that runs alone too: the batch it is told is everybody's together."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
distributed = world > 1
if distributed and not dist.is_initialized():
    dist.init_process_group("gloo")
torch.manual_seed(44)
data = TensorDataset(torch.randn(72, 5), torch.randint(0, 3, (72,)))
sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True)
loader = DataLoader(data, batch_size=12 // world, sampler=sampler)
model = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 3))
net = DistributedDataParallel(model) if distributed else model
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
history = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        shown = loss.detach().clone()
        if distributed:
            dist.all_reduce(shown)
            shown /= world
        history.append(shown.item())
if distributed:
    dist.destroy_process_group()
