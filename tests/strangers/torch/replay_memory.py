"""Q-learning with a replay memory, a target net that follows slowly, and clipped gradients."""

import random
from collections import deque

import torch
from torch import nn

random.seed(20)
torch.manual_seed(20)


def net():
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))


policy, target = net(), net()
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
memory = deque(maxlen=100)
history = []
state = torch.zeros(1, 3)
for step in range(60):
    if random.random() < 0.9 * 0.95**step:
        action = torch.tensor([[random.randrange(2)]])
    else:
        with torch.no_grad():
            action = policy(state).max(1).indices.view(1, 1)
    following = state * 0.8 + torch.randn(1, 3) * 0.1 + (action.float() - 0.5)
    memory.append((state, action, following, -following.abs().sum(1)))
    state = following
    if len(memory) < 10:
        continue
    states, actions, nexts, rewards = (torch.cat(part) for part in zip(*random.sample(memory, 10)))
    values = policy(states).gather(1, actions)
    with torch.no_grad():
        best = target(nexts).max(1).values
    loss = nn.SmoothL1Loss()(values, (rewards + 0.9 * best).unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy.parameters(), 1.0)
    optimizer.step()
    mixed = target.state_dict()
    for key, value in policy.state_dict().items():
        mixed[key] = 0.05 * value + 0.95 * mixed[key]
    target.load_state_dict(mixed)
    history.append(loss.item())
models = [policy, target]
