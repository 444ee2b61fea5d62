"""A causal transformer over characters; batches are windows drawn from the text, without a loader,
gradients add up over micro-batches, and the learning rate warms up and decays."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1337)
block_size, batch_size, n_embd, micro = 12, 6, 16, 3
text = torch.randint(0, 17, (400,))


def get_batch():
    ix = torch.randint(len(text) - block_size, (batch_size,))
    x = torch.stack([text[i : i + block_size] for i in ix])
    y = torch.stack([text[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 32), nn.GELU(), nn.Linear(32, n_embd))
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        heads = (
            t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.drop(y.transpose(1, 2).flatten(2))
        return x + self.drop(self.mlp(self.ln2(x)))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(17, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(n_embd, 17, bias=False)
        self.wte.weight = self.head.weight

    def forward(self, idx, targets):
        x = self.blocks(self.wte(idx) + self.wpe(torch.arange(idx.shape[1])))
        logits = self.head(x)
        return logits, F.cross_entropy(logits.view(-1, 17), targets.view(-1), ignore_index=-1)


model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
history = []
for step in range(12):
    lr = 1e-3 * min((step + 1) / 4, 0.5 * (1 + math.cos(math.pi * step / 12)))
    for group in optimizer.param_groups:
        group["lr"] = lr
    for _ in range(micro):
        _, loss = model(*get_batch())
        (loss / micro).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    history.append(loss.item())
