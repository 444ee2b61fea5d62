"""Policy gradients on CartPole of `gymnasium`: an episode, then a step on its returns."""

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(543)
env = gymnasium.make("CartPole-v1")
env.reset(seed=543)
model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
history = []
for _episode in range(8):
    state, _ = env.reset()
    chances, rewards = [], []
    for _step in range(100):
        choice = Categorical(logits=model(torch.from_numpy(state).unsqueeze(0)))
        action = choice.sample()
        chances.append(choice.log_prob(action))
        state, reward, ended, cut, _ = env.step(action.item())
        rewards.append(reward)
        if ended or cut:
            break
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + 0.99 * total
        returns.insert(0, total)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + np.finfo(np.float32).eps.item())
    loss = torch.cat([-c * r for c, r in zip(chances, returns, strict=True)]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history += [loss.item(), len(rewards)]
