"""Handwriting in 28 x 28 pixels for mnist_torch.py and mnist_keras.py.

Without a folder: scikit-learn's 1797 digits of 8 x 8 pixels, drawn larger, so that nothing is
downloaded. With one: MNIST's own four files (train-images-idx3-ubyte, with .gz or without, ...).
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

Images = tuple[np.ndarray, np.ndarray]  # (n, 28, 28) float32 from 0 to 1, and (n,) int64
SIZE = 28


def handwriting(folder: str | None = None) -> tuple[Images, Images]:
    """Return what to train on and what to test with."""
    if folder is None:
        return drawn_larger()
    return read(Path(folder), "train"), read(Path(folder), "t10k")


def drawn_larger() -> tuple[Images, Images]:
    """Return the small digits, bilinearly enlarged: every fourth is for the test."""
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    weights = enlarging(8, SIZE)
    pixels = weights @ (small.reshape(-1, 8, 8) / 16) @ weights.T
    images, labels = pixels.astype("float32"), labels.astype("int64")
    test = np.arange(len(labels)) % 4 == 0
    return (images[~test], labels[~test]), (images[test], labels[test])


def enlarging(small: int, large: int) -> np.ndarray:
    """Return the (large, small) matrix that interpolates linearly between pixels' centres."""
    places = np.clip((np.arange(large) + 0.5) * small / large - 0.5, 0, small - 1)
    return np.maximum(0, 1 - np.abs(places[:, None] - np.arange(small)))


def read(folder: Path, part: str) -> Images:
    """Return the images and labels of MNIST's "train" or "t10k"."""
    pixels = idx(folder / f"{part}-images-idx3-ubyte", 16).reshape(-1, SIZE, SIZE)
    return pixels.astype("float32") / 255, idx(folder / f"{part}-labels-idx1-ubyte", 8).astype(
        "int64"
    )


def idx(path: Path, header: int) -> np.ndarray:
    """Return the bytes of an IDX file behind its header, packed or not."""
    packed = path.with_name(f"{path.name}.gz")
    content = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    return np.frombuffer(content, np.uint8, offset=header)
