"""A streamed text of `datasets`, whose words a collator of `transformers` masks by batch."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from datasets import IterableDataset
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    DataCollatorForLanguageModeling,
    set_seed,
)

set_seed(29)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(40))]
with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(str(Path(folder) / "vocab.txt"))


def texts():
    source = np.random.default_rng(1)
    for _ in range(45):
        yield {"text": " ".join(f"w{i}" for i in source.integers(0, 40, source.integers(4, 14)))}


table = IterableDataset.from_generator(texts)
table = table.map(lambda row: tokenizer(row["text"]), remove_columns="text")
collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3)
loader = DataLoader(table, batch_size=8, collate_fn=collator)
model = BertForMaskedLM(
    BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
model.train()
for _epoch in range(2):
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.item())
