"""GPT-2 of `transformers` over a `datasets` table, padded by batch; `torchmetrics` counts."""

import datasets
import numpy as np
import torch
import torchmetrics
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup, set_seed

set_seed(3)
rows = [np.random.randint(1, 50, np.random.randint(4, 17)).tolist() for _ in range(45)]
table = datasets.Dataset.from_dict({"input_ids": rows})


def collate(batch):
    longest = max(len(row["input_ids"]) for row in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for i, row in enumerate(batch):
        n = len(row["input_ids"])
        ids[i, :n] = labels[i, :n] = torch.tensor(row["input_ids"])
        mask[i, :n] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


config = GPT2Config(
    vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(table, batch_size=8, shuffle=True, collate_fn=collate)
schedule = get_cosine_schedule_with_warmup(optimizer, 4, 18)
seen, missed = torchmetrics.MeanMetric(), torchmetrics.SumMetric()
history = []
for _epoch in range(3):
    model.train()
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        history.append(loss.item())
    model.eval()
    with torch.no_grad():
        for batch in DataLoader(table, batch_size=8, collate_fn=collate):
            out = model(**batch)
            seen.update(out.loss)
            guess = out.logits[:, :-1].argmax(-1)
            missed.update(((guess != batch["labels"][:, 1:]) & (batch["labels"][:, 1:] > 0)).sum())
    history += [seen.compute().item(), missed.compute().item()]
    missed.reset()
