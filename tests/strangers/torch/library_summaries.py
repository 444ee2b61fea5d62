"""T5 of `transformers`, whose decoder starts from shifted labels; it writes by beams at the end."""

import torch
from torch.utils.data import DataLoader
from transformers import T5Config, T5ForConditionalGeneration, set_seed

set_seed(23)
sources = [torch.randint(2, 40, (int(n),)) for n in torch.randint(3, 12, (37,))]
rows = [(source, source.flip(0)[:6]) for source in sources]


def collate(batch):
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([source for source, _ in batch], batch_first=True)
    labels = pad([target for _, target in batch], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


config = T5Config(
    vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.1,
    decoder_start_token_id=0,
)  # fmt: skip
model = T5ForConditionalGeneration(config)
loader = DataLoader(rows, batch_size=8, shuffle=True, collate_fn=collate)
history = []


def epoch(model, optimizer):
    model.train()
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.item())


optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
epoch(model, optimizer)
epoch(model, optimizer)
epoch(model, optimizer)
model.eval()
with torch.no_grad():
    for batch in DataLoader(rows[:10], batch_size=5, collate_fn=collate):
        written = model.generate(input_ids=batch["input_ids"], max_new_tokens=5, num_beams=2)
        history.append(float(written.sum()))
