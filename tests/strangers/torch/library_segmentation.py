"""A U-Net of `segmentation_models_pytorch` under a sum of two losses, one of which is dice."""

import segmentation_models_pytorch as smp
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(17)
images, masks = torch.randn(14, 3, 32, 32), torch.randint(0, 2, (14, 1, 32, 32)).float()
train = DataLoader(TensorDataset(images, masks), batch_size=4, shuffle=True)
model = smp.Unet("resnet18", encoder_weights=None, encoder_depth=3, decoder_channels=(16, 8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
dice, entropy = smp.losses.DiceLoss("binary"), nn.BCEWithLogitsLoss()
history = []
for _ in range(2):
    for a, b in train:
        optimizer.zero_grad()
        out = model(a)
        loss = dice(out, b) + entropy(out, b)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
models = {"trained": model}
