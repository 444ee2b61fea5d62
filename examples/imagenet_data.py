"""Images of a folder by class, for imagenet_torch.py and imagenet_keras.py: read, cut, mirrored.

What augmentation draws hangs on the sample and the epoch alone.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
from imagenet_images import make
from PIL import Image

MEAN, SPREAD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def drawn() -> Path:
    """Return the small folder that imagenet_images.py draws, drawn once on a machine."""
    return make(Path(tempfile.gettempdir()) / "dream-imagenet-like")


class Folder:
    """CLASS/*.jpg. size: pixels of the square that is cut from each image."""

    def __init__(self, place: Path, size: int) -> None:
        self.size = size
        self.classes = sorted(each.name for each in place.iterdir() if each.is_dir())
        self.files = [(path, label) for label, name in enumerate(self.classes)
                      for path in sorted((place / name).iterdir())]  # fmt: skip

    def __len__(self) -> int:
        return len(self.files)

    def sample(self, index: int, epoch: int | None) -> tuple[np.ndarray, int]:
        """Return normalised pixels (size, size, 3) and the class; augmented where there is an
        epoch."""
        path, label = self.files[index]
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        cut = self.middle(image) if epoch is None else self.augmented(image, (epoch, index))
        return (np.asarray(cut) / 255 - MEAN) / SPREAD, label

    def augmented(self, image: Image.Image, seed: tuple[int, int]) -> Image.Image:
        """Half of the image's area or more, mirrored every other time."""
        draw = np.random.default_rng(seed)
        part, ratio = draw.uniform(0.5, 1), math.exp(draw.uniform(-0.2, 0.2))
        width = min(image.width, image.width * math.sqrt(part * ratio))
        height = min(image.height, image.height * math.sqrt(part / ratio))
        left = draw.uniform(0, image.width - width)
        top = draw.uniform(0, image.height - height)
        cut = self.cut(image, (left, top, left + width, top + height))
        return cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draw.random() < 0.5 else cut

    def middle(self, image: Image.Image) -> Image.Image:
        """The middle square's seven eighths."""
        side = min(image.size) * 7 / 8
        left, top = (image.width - side) / 2, (image.height - side) / 2
        return self.cut(image, (left, top, left + side, top + side))

    def cut(self, image: Image.Image, box: tuple[float, float, float, float]) -> Image.Image:
        return image.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
