"""A folder of images laid out as ImageNet's: train/CLASS/*.jpg and val/CLASS/*.jpg.

python examples/imagenet_images.py FOLDER        ten classes of drawn figures, 500 JPEGs

Each image is one figure of random colour, size and place on a noisy ground, from a fixed seed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

TRAIN, VAL = 40, 10  # images a class


def figures(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Return where each class's figure is. x, y: pixels' places, -1 to 1 over the figure."""
    radius, inside = np.hypot(x, y), (abs(x) < 1) & (abs(y) < 1)
    return {
        "bars": inside & (np.floor(3 * x) % 2 == 0),
        "chess": inside & ((np.floor(2 * x) + np.floor(2 * y)) % 2 == 0),
        "cross": inside & ((abs(x) < 0.25) | (abs(y) < 0.25)),
        "diamond": abs(x) + abs(y) < 1,
        "disc": radius < 0.9,
        "frame": inside & ((abs(x) > 0.6) | (abs(y) > 0.6)),
        "ladder": inside & (np.floor(3 * y) % 2 == 0),
        "ring": (radius > 0.5) & (radius < 0.95),
        "saltire": inside & ((abs(x - y) < 0.35) | (abs(x + y) < 0.35)),
        "wedge": (y > -1) & (y < 1) & (abs(x) < (y + 1) / 2),
    }


CLASSES = tuple(figures(np.zeros(()), np.zeros(())))


def image(draw: np.random.Generator, name: str) -> Image.Image:
    """Return one image of a class, 64 to 96 pixels wide and high."""
    height, width = draw.integers(64, 97, size=2)
    radius = draw.uniform(0.3, 0.45) * min(height, width)
    top, left = draw.uniform(radius, (height - radius, width - radius))
    y, x = np.mgrid[:height, :width]
    figure = figures((x - left) / radius, (y - top) / radius)[name]
    ground, colour = draw.uniform(0, 110, size=3), draw.uniform(145, 255, size=3)
    pixels = np.where(figure[..., None], colour, ground) + draw.normal(0, 10, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def make(folder: Path) -> Path:
    """Draw the folder where there is none yet, whole or not at all, and return it."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        draw = np.random.default_rng(0)
        for part, count in (("train", TRAIN), ("val", VAL)):
            for name in CLASSES:
                own = Path(place, "images", part, name)
                own.mkdir(parents=True)
                for index in range(count):
                    image(draw, name).save(own / f"{index:03}.jpg", quality=90)
        Path(place, "images").rename(folder)
    return folder


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
