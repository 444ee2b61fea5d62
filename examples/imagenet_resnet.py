"""ResNet-18 and ResNet-50 for imagenet_torch.py (He et al. 2015; strides as in torchvision's)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Block(nn.Module):
    """Convolutions, and around them what came in. The last norm starts at 0."""

    def __init__(self, layers: list[nn.Conv2d], inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.BatchNorm2d(layer.out_channels) for layer in layers)
        nn.init.zeros_(self.norms[-1].weight)
        same = inputs == outputs and stride == 1
        self.around = nn.Identity() if same else nn.Sequential(
            convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x
        for index, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            out = norm(layer(F.relu(out) if index else out))
        return F.relu(out + self.around(x))


def basic(inputs: int, width: int, stride: int) -> Block:
    layers = [convolution(inputs, width, 3, stride), convolution(width, width, 3)]
    return Block(layers, inputs, width, stride)


def bottleneck(inputs: int, width: int, stride: int) -> Block:
    layers = [convolution(inputs, width, 1), convolution(width, width, 3, stride),
              convolution(width, 4 * width, 1)]  # fmt: skip
    return Block(layers, inputs, 4 * width, stride)


def resnet(name: str, classes: int, width: int = 64) -> nn.Sequential:
    """Return "resnet18" or "resnet50". Takes (n, 3, height, width), gives (n, classes)."""
    block, grown = (basic, 1) if name == "resnet18" else (bottleneck, 4)
    layers: list[nn.Module] = [
        convolution(3, width, 7, 2), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    ]  # fmt: skip
    inputs = width
    for stage, count in enumerate(BLOCKS[name]):
        for index in range(count):
            own = width * 2**stage
            layers.append(block(inputs, own, 2 if stage and not index else 1))
            inputs = own * grown
    model = nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model
