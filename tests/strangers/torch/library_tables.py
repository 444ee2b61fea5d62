"""A table of `pandas`, split and scaled by `sklearn`; `tqdm` shows the batches; AUC by epoch."""

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

np.random.seed(0)
torch.manual_seed(0)
frame = pd.DataFrame(np.random.randn(83, 4), columns=list("abcd"))
frame["kind"] = np.random.choice(["red", "green", "blue"], 83)
frame["label"] = ((frame.a - frame.b + (frame.kind == "red")) > 0).astype(int)
train, test = train_test_split(frame, test_size=0.3, random_state=7, stratify=frame.label)
scaler, encoder = StandardScaler().fit(train[list("abcd")]), OneHotEncoder().fit(train[["kind"]])


def tensors(part):
    numbers, kinds = scaler.transform(part[list("abcd")]), encoder.transform(part[["kind"]])
    x = np.hstack([numbers, kinds.toarray()]).astype("float32")
    return TensorDataset(torch.from_numpy(x), torch.tensor(part.label.values).float())


loader = DataLoader(tensors(train), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(7, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(1.5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for epoch in range(3):
    model.train()
    bar = tqdm(loader, desc=f"epoch {epoch}", leave=False)
    for x, y in bar:
        optimizer.zero_grad()
        loss = criterion(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=f"{loss.item():.3f}")
        history.append(loss.item())
    model.eval()
    scores, labels = [], []
    with torch.no_grad():
        for x, y in DataLoader(tensors(test), batch_size=16):
            scores += torch.sigmoid(model(x)).squeeze(1).tolist()
            labels += y.tolist()
    history.append(roc_auc_score(labels, scores))
