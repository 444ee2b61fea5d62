"""Connectionist temporal classification: utterances and transcripts of different lengths."""

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(17)


def utterance():
    frames, letters = int(torch.randint(10, 16, ())), int(torch.randint(2, 5, ()))
    return torch.randn(frames, 6), torch.randint(1, 8, (letters,))


def collate(batch):
    frames, letters = zip(*batch)
    return (
        nn.utils.rnn.pad_sequence(frames, batch_first=True),
        torch.tensor([len(f) for f in frames]),
        nn.utils.rnn.pad_sequence(letters, batch_first=True),
        torch.tensor([len(t) for t in letters]),
    )


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(6, 12, 3, padding=1)
        self.gru = nn.GRU(12, 10, batch_first=True)
        self.out = nn.Linear(10, 8)

    def forward(self, x):
        h, _ = self.gru(self.conv(x.transpose(1, 2)).relu().transpose(1, 2))
        return self.out(h).log_softmax(-1)


model = Recogniser()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
loader = DataLoader(
    [utterance() for _ in range(33)], batch_size=7, shuffle=True, collate_fn=collate
)
ctc = nn.CTCLoss(zero_infinity=True)
history = []
for _epoch in range(3):
    for frames, frame_lengths, letters, letter_lengths in loader:
        loss = ctc(model(frames).transpose(0, 1), letters, frame_lengths, letter_lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
