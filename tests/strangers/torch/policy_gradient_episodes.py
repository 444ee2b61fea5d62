"""REINFORCE on a corridor: episodes are played one step at a time, the losses of all are summed."""

import random

import torch
from torch import nn
from torch.distributions import Categorical

random.seed(19)
torch.manual_seed(19)


class Corridor:
    def reset(self):
        self.place = random.choice([1, 2, 3])
        return self.state()

    def state(self):
        return [self.place / 4, random.gauss(0, 0.1)]

    def step(self, action):
        self.place += 1 if action == 1 else -1
        return self.state(), float(self.place == 4), self.place in (0, 4)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.dropout, self.affine2 = (
            nn.Linear(2, 16),
            nn.Dropout(0.2),
            nn.Linear(16, 2),
        )

    def forward(self, x):
        return torch.softmax(self.affine2(torch.relu(self.dropout(self.affine1(x)))), dim=1)


env, model = Corridor(), Policy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
history = []
for _episode in range(15):
    state, log_probs, rewards = env.reset(), [], []
    for _ in range(12):
        chances = Categorical(model(torch.tensor(state).unsqueeze(0)))
        action = chances.sample()
        log_probs.append(chances.log_prob(action))
        state, reward, done = env.step(action.item())
        rewards.append(reward - 0.1)
        if done:
            break
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + 0.95 * total
        returns.insert(0, total)
    returns = torch.tensor(returns)
    optimizer.zero_grad()
    loss = torch.cat([-p * r for p, r in zip(log_probs, returns)]).sum()
    loss.backward()
    optimizer.step()
    history.append(sum(rewards))
