"""An encoder and decoder transformer with a shared embedding, trained by AdamW; -100 is padding."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

torch.manual_seed(7)


class TextToText(nn.Module):
    def __init__(self, words=20, d=16):
        super().__init__()
        self.shared = nn.Embedding(words, d)
        self.core = nn.Transformer(d, 2, 1, 1, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.lm_head = nn.Linear(d, words, bias=False)
        self.lm_head.weight = self.shared.weight
        self.scale = d**-0.5

    def forward(self, input_ids, attention_mask, labels):
        shifted = F.pad(labels, (1, -1)).clamp(min=0)
        hidden = self.core(
            self.shared(input_ids),
            self.shared(shifted),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(labels.shape[1]),
            src_key_padding_mask=~attention_mask,
            memory_key_padding_mask=~attention_mask,
        )
        logits = self.lm_head(hidden * self.scale)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1))
        return {"loss": loss, "logits": logits}


def example(length):
    ids = torch.randint(1, 20, (length,))
    labels = torch.full((7,), -100)
    labels[:length] = ids.flip(0)
    padded = F.pad(ids, (0, 7 - length))
    return {"input_ids": padded, "attention_mask": padded > 0, "labels": labels}


examples = [example(int(length)) for length in torch.randint(2, 8, (35,))]
model = TextToText()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for _epoch in range(3):
    for batch in DataLoader(examples, batch_size=8, shuffle=True):
        outputs = model(**batch)
        loss = outputs["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.detach().float().item())
