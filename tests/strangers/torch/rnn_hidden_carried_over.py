"""A recurrent language model over columns of a long text; the state goes on from batch to batch."""

import torch
from torch import nn

torch.manual_seed(41)
text = torch.randint(0, 15, (311,))
columns = text[: 311 // 5 * 5].view(5, -1).t().contiguous()


class RNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder, self.rnn = nn.Embedding(15, 12), nn.LSTM(12, 12, 2, dropout=0.2)
        self.decoder = nn.Linear(12, 15)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, x, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return self.decoder(self.drop(output)).view(-1, 15).log_softmax(1), hidden

    def start(self, size):
        return tuple(next(self.parameters()).new_zeros(2, size, 12) for _ in range(2))


model, criterion, lr = RNN(), nn.NLLLoss(), 0.5
hidden, history = model.start(5), []
for i in range(0, len(columns) - 1, 8):
    length = min(8, len(columns) - 1 - i)
    x, y = columns[i : i + length], columns[i + 1 : i + 1 + length].view(-1)
    model.zero_grad()
    hidden = tuple(h.detach() for h in hidden)
    output, hidden = model(x, hidden)
    loss = criterion(output, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)
    history.append(loss.item())
