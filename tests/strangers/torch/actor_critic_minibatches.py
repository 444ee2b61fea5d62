"""Proximal policy optimisation: a rollout is cut into random minibatches, several times over."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

np.random.seed(66)
torch.manual_seed(66)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1))
        self.actor = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1))
        self.log_std = nn.Parameter(torch.zeros(1, 1))

    def act(self, x, action=None):
        chances = Normal(self.actor(x), self.log_std.exp().expand(len(x), 1))
        action = chances.sample() if action is None else action
        return action, chances.log_prob(action).sum(1), chances.entropy().sum(1), self.critic(x)


agent = Agent()
optimizer = torch.optim.SGD(agent.parameters(), lr=0.02)
history, indices = [], np.arange(30)
for _update in range(3):
    states = torch.as_tensor(np.random.normal(size=(30, 3)), dtype=torch.float32)
    with torch.no_grad():
        actions, old, _, values = agent.act(states)
        returns = -(actions - states[:, :1]).pow(2)
        advantages = (returns - values).squeeze(1)
    for _epoch in range(2):
        np.random.shuffle(indices)
        for start in range(0, 30, 8):
            chosen = indices[start : start + 8]
            _, log_prob, entropy, value = agent.act(states[chosen], actions[chosen])
            ratio, gain = (log_prob - old[chosen]).exp(), advantages[chosen]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
            loss = policy + 0.5 * (value - returns[chosen]).pow(2).mean() - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            history.append(loss.item())
model = agent
