"""`transformers`: a collator masks words as it is asked for a batch, as in BERT's own training."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    DataCollatorForLanguageModeling,
    get_scheduler,
    set_seed,
)

set_seed(17)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(40))]
with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(str(Path(folder) / "vocab.txt"))
texts = [
    " ".join(f"w{i}" for i in np.random.randint(0, 40, np.random.randint(4, 14))) for _ in range(45)
]
rows = [tokenizer(text) for text in texts]
collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3)
loader = DataLoader(rows, batch_size=8, shuffle=True, collate_fn=collator)
model = BertForMaskedLM(
    BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = get_scheduler("linear", optimizer, num_warmup_steps=2, num_training_steps=18)
history = []
model.train()
for _epoch in range(3):
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        history.append(loss.item())
