"""Ratings as products of users and films, with sparse gradients of the embeddings."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)
users, films = torch.randint(0, 20, (85,)), torch.randint(0, 30, (85,))
data = TensorDataset(users, films, torch.randint(1, 6, (85,)).float())


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.film = nn.Embedding(20, 4, sparse=True), nn.Embedding(30, 4, sparse=True)
        self.user_bias = nn.Embedding(20, 1, sparse=True)

    def forward(self, user, film):
        return (self.user(user) * self.film(film)).sum(1) + self.user_bias(user).squeeze(1)


model = Factors()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
history = []
for _epoch in range(3):
    for user, film, rating in DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(user, film), rating)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
