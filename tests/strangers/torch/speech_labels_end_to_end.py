"""CTC whose frames are padded to the longest, and whose labels lie end to end."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(94)
sayings = [
    (torch.randn(6 + number * 5 % 7, 3), torch.randint(1, 5, (1 + number % 3,)))
    for number in range(37)
]


def padded(chosen):
    frames, labels = zip(*chosen)
    lengths = [torch.tensor([len(each) for each in some]) for some in (frames, labels)]
    return pad_sequence(frames, batch_first=True), torch.cat(labels), *lengths


hearing = nn.GRU(3, 6, bidirectional=True, batch_first=True)
telling = nn.Linear(12, 5)
model = [hearing, telling]
optimizer = torch.optim.SGD([*hearing.parameters(), *telling.parameters()], lr=0.1)
history = []
for _epoch in range(3):
    for frames, labels, heard, said in DataLoader(sayings, 8, shuffle=True, collate_fn=padded):
        scores = telling(hearing(frames)[0]).log_softmax(-1)
        loss = F.ctc_loss(scores.transpose(0, 1), labels, heard, said)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history += [loss.item(), float(frames.shape[1])]
