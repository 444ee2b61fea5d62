"""Encoder, attention, decoder; Python's random decides at each step whether the teacher helps."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

random.seed(20)
torch.manual_seed(20)
PAD, SOS, EOS = 0, 1, 2


def pair():
    a = [random.randint(3, 14) for _ in range(random.randint(3, 7))]
    return torch.tensor([*a, EOS]), torch.tensor([SOS, *a[::-1], EOS])


def collate(batch):
    src, trg = zip(*batch)
    return pad_sequence(src), torch.tensor([len(s) for s in src]), pad_sequence(trg)


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.d = nn.Embedding(15, 8, padding_idx=PAD), nn.Embedding(15, 8, padding_idx=PAD)
        self.enc = nn.GRU(8, 10, bidirectional=True)
        self.bridge, self.attn = nn.Linear(20, 10), nn.Linear(30, 1)
        self.dec, self.out = nn.GRU(28, 10), nn.Linear(10, 15)

    def forward(self, src, lengths, trg, ratio=0.5):
        packed = pack_padded_sequence(self.e(src), lengths, enforce_sorted=False)
        enc, h = self.enc(packed)
        enc, _ = pad_packed_sequence(enc, total_length=src.size(0))
        mask = (src != PAD).t()
        h = torch.tanh(self.bridge(torch.cat([h[0], h[1]], 1)))
        outputs = torch.zeros(trg.size(0), trg.size(1), 15)
        tok = trg[0]
        for t in range(1, trg.size(0)):
            rep = h.unsqueeze(0).expand(src.size(0), -1, -1)
            score = self.attn(torch.cat([enc, rep], 2)).squeeze(2).t().masked_fill(~mask, -1e9)
            a = F.softmax(score, 1).unsqueeze(1)
            ctx = torch.bmm(a, enc.transpose(0, 1)).transpose(0, 1)
            o, hn = self.dec(torch.cat([self.d(tok).unsqueeze(0), ctx], 2), h.unsqueeze(0))
            h = hn.squeeze(0)
            outputs[t] = self.out(o.squeeze(0))
            tok = trg[t] if random.random() < ratio else outputs[t].argmax(1)
        return outputs


model = Seq2Seq()
opt = torch.optim.SGD(model.parameters(), lr=0.3)
crit = nn.CrossEntropyLoss(ignore_index=PAD)
loader = DataLoader([pair() for _ in range(29)], batch_size=6, shuffle=True, collate_fn=collate)
history = []
for _epoch in range(2):
    model.train()
    epoch_loss = 0
    for src, lengths, trg in loader:
        opt.zero_grad()
        out = model(src, lengths, trg)
        loss = crit(out[1:].view(-1, 15), trg[1:].view(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        epoch_loss += loss.item()
    history.append(epoch_loss / len(loader))
