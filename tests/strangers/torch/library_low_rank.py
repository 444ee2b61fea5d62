"""BERT of `transformers`, of which `peft` trains low-rank parts alone; gradients of two batches."""

import numpy as np
import torch
import torchmetrics
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    get_linear_schedule_with_warmup,
    set_seed,
)

set_seed(11)
texts = [np.random.randint(1, 60, np.random.randint(3, 15)).tolist() for _ in range(61)]
rows = [{"ids": text, "label": sum(text) % 3} for text in texts]


def collate(batch):
    longest = max(len(row["ids"]) for row in batch)
    ids = torch.tensor([row["ids"] + [0] * (longest - len(row["ids"])) for row in batch])
    labels = torch.tensor([row["label"] for row in batch])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


config = BertConfig(
    vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=32, num_labels=3, max_position_embeddings=32,
)  # fmt: skip
low_rank = LoraConfig(
    r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["query", "value"], task_type="SEQ_CLS"
)
model = get_peft_model(BertForSequenceClassification(config), low_rank)
train = DataLoader(rows[:43], batch_size=8, shuffle=True, collate_fn=collate)
test = DataLoader(rows[43:], batch_size=8, collate_fn=collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
schedule = get_linear_schedule_with_warmup(optimizer, 3, 3 * len(train))
score = torchmetrics.F1Score(task="multiclass", num_classes=3, average="macro")
history = []
for _epoch in range(3):
    model.train()
    for i, batch in enumerate(train):
        (model(**batch).loss / 2).backward()
        if i % 2 == 1 or i == len(train) - 1:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
    model.eval()
    for batch in test:
        with torch.no_grad():
            out = model(**batch)
        score.update(out.logits, batch["labels"])
        history.append(out.loss.item())
    history.append(score.compute().item())
    score.reset()
