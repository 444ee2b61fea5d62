"""Volumes by `monai`: its transforms, its cached dataset, its loader, its loss and its inferer."""

import numpy as np
import torch
from monai.data import CacheDataset, DataLoader
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import BasicUNet
from monai.transforms import Compose, EnsureTyped, RandFlipd, RandGaussianNoised, ScaleIntensityd
from monai.utils import set_determinism

set_determinism(18)
draw = np.random.RandomState(0)
items = [
    {"image": draw.rand(1, 32, 32).astype("float32"),
     "label": (draw.rand(1, 32, 32) > 0.5).astype("float32")}
    for _ in range(14)
]  # fmt: skip
transforms = Compose([
    ScaleIntensityd("image"), RandFlipd(["image", "label"], prob=0.5),
    RandGaussianNoised("image", prob=0.5), EnsureTyped(["image", "label"]),
])  # fmt: skip
train = DataLoader(
    CacheDataset(items, transforms, progress=False, num_workers=1), batch_size=4, shuffle=True
)
model = BasicUNet(2, 1, 2, features=(4, 4, 8, 8, 8, 4), norm=("instance", {"affine": True}))
criterion = DiceCELoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
history, measure = [], DiceMetric(include_background=False)
for _ in range(2):
    model.train()
    for batch in train:
        optimizer.zero_grad()
        loss = criterion(model(batch["image"]), batch["label"])
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    model.eval()
    with torch.no_grad():
        for batch in train:
            out = sliding_window_inference(batch["image"], (32, 32), 2, model)
            measure(y_pred=out.argmax(1, keepdim=True), y=batch["label"])
    history.append(measure.aggregate().item())
    measure.reset()
models = {"trained": model}
