"""ImageNet in PyTorch: a ResNet on a folder of images, and all that a long training needs:
augmentation, workers, a schedule with warm-up, top-1 and top-5, checkpoints, the best model.

python examples/imagenet_torch.py --double                       one process
dream run -n 2 examples/imagenet_torch.py --double               the same figures
dream run -n 2 --strategy sharded examples/imagenet_torch.py     or any other word
dream run -n 8 examples/imagenet_torch.py --data /imagenet --arch resnet50 --width 64 --size 224 \
    --epochs 90 --warm-up 5 --batch-size 1024 --lr 0.4 --workers 8 --save runs/resnet50

Without --data a small folder is drawn first (imagenet_images.py). With --save the same line, given
again, goes on where the last one stopped. What augmentation draws hangs on the sample and the epoch
alone, so neither the number of ranks nor that of workers changes a pixel. In float32 ranks that add
up in another order round otherwise, and batch norm over few pixels makes that grow from step to
step; with --double the figures are the same.
"""

import argparse
import math
from pathlib import Path

import torch
from imagenet_data import Folder, drawn
from imagenet_resnet import BLOCKS, resnet
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import dream

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, help="a folder with train/CLASS/* and val/CLASS/*")
parser.add_argument("--arch", choices=list(BLOCKS), default="resnet18")
parser.add_argument("--width", type=int, default=16, help="channels of the first layer (64)")
parser.add_argument("--size", type=int, default=40, help="pixels of a crop (224)")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--warm-up", type=int, default=1, help="epochs")
parser.add_argument("--batch-size", type=int, default=48, help="the global one")
parser.add_argument("--lr", type=float, default=0.1, help="the highest")
parser.add_argument("--workers", type=int, default=1, help="loader processes a rank")
parser.add_argument("--double", action="store_true", help="float64")
parser.add_argument("--save", metavar="FOLDER", help="checkpoints, to go on from")
args = parser.parse_args()

DTYPE = "float64" if args.double else "float32"


class Images(Dataset):
    """A folder's images and classes, made in the loader's workers."""

    def __init__(self, folder: Folder, *, train: bool) -> None:
        self.folder, self.train, self.epoch = folder, train, 0

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels, label = self.folder.sample(index, self.epoch if self.train else None)
        return torch.from_numpy(pixels.transpose(2, 0, 1).astype(DTYPE)), label


def share_of_lr(step: int) -> float:
    """From 0 up in a line over the warm-up, then down to 0 along a cosine."""
    warm, steps = args.warm_up * len(batches), args.epochs * len(batches)
    if step < warm:
        return (step + 1) / warm
    return (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2


def among(count: int):
    """Whether the right class is among the `count` likeliest: one value a sample."""
    return lambda out, y: (out.topk(count).indices == y[:, None]).any(1).float()


with dream.rank_zero_first():
    place = args.data or drawn()
train = Images(Folder(place / "train", args.size), train=True)
val = Images(Folder(place / "val", args.size), train=False)

torch.manual_seed(0)
torch.set_default_dtype(getattr(torch, DTYPE))
with dream.strategy("mirrored") as strategy:
    model = resnet(args.arch, len(train.folder.classes), args.width)
    norms = [each for each in model.parameters() if each.ndim == 1]  # and biases: no decay
    weights = [each for each in model.parameters() if each.ndim > 1]
    groups = [{"params": weights, "weight_decay": 1e-4}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=args.lr, momentum=0.9, nesterov=True)
    batches = DataLoader(train, args.batch_size, shuffle=True, num_workers=args.workers)
    tests = DataLoader(val, args.batch_size, num_workers=args.workers)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_lr)

    parts = {"model": model, "optimizer": optimizer, "scheduler": schedule, "data": batches}
    at = strategy.load(args.save, **parts) if args.save else None
    step, first = (at.step, at.epoch) if at else (0, 0)
    for epoch in range(first, args.epochs):
        train.epoch = epoch
        model.train()
        losses = []
        for x, y in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            losses.append(loss.detach())  # after backward the global one

        model.eval()
        found = strategy.evaluate(model, tests, {"top1": among(1), "top5": among(5)})
        mean = sum(map(float, losses)) / len(losses)
        if strategy.topology.rank == 0:
            print(
                f"epoch {epoch + 1}: loss {mean:.4f}, top-1 {found['top1']:.3f}, "
                f"top-5 {found['top5']:.3f}",
                flush=True,
            )
        if args.save:
            error = {"error": 1 - found["top1"]}
            strategy.save(args.save, step=step, extra=error, best="error", **parts)
