"""An image is optimised, not a network, whose weights are fixed."""

import torch
from torch import nn

torch.manual_seed(51)
features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
for p in features.parameters():
    p.requires_grad_(False)
content, style = torch.rand(1, 3, 12, 12), torch.rand(1, 3, 12, 12)


def gram(x):
    flat = x.flatten(2).squeeze(0)
    return flat @ flat.t() / flat.numel()


wanted_content, wanted_style = features(content), gram(features(style))
image = content.clone().requires_grad_(True)
optimizer = torch.optim.SGD([image], lr=0.5)
history = []
for _step in range(15):
    optimizer.zero_grad()
    found = features(image)
    near = nn.functional.mse_loss(found, wanted_content)
    loss = near + 50.0 * nn.functional.mse_loss(gram(found), wanted_style)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        image.clamp_(0, 1)
    history.append(loss.item())
model = image
