"""A vision transformer of `timm`, with its drop path, optimizer, schedule, loss and average."""

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, accuracy
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(21)
images, labels = torch.randn(43, 3, 16, 16), torch.randint(0, 4, (43,))
train = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
test = DataLoader(TensorDataset(images[:19], labels[:19]), batch_size=8)
model = timm.create_model(
    "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=2,
    num_classes=4, drop_rate=0.1, drop_path_rate=0.2,
)  # fmt: skip
average = ModelEmaV3(model, decay=0.9)
optimizer = create_optimizer_v2(model, opt="momentum", lr=0.05, weight_decay=0.01)
schedule = CosineLRScheduler(optimizer, t_initial=3, warmup_t=1, warmup_lr_init=0.01)
criterion = LabelSmoothingCrossEntropy(0.1)
history = []
for epoch in range(3):
    model.train()
    for x, y in train:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update(model)
        history.append(loss.item())
    schedule.step(epoch + 1)
    model.eval()
    top = AverageMeter()
    with torch.no_grad():
        for x, y in test:
            top.update(accuracy(model(x), y, topk=(1,))[0].item(), len(x))
    history.append(top.avg)
models = {"trained": model, "average": average.module}
