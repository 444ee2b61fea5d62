"""ImageNet in Keras: a ResNet on a folder of images, and all that a long training needs:
augmentation, workers, a schedule with warm-up, top-1 and top-5, checkpoints, the best model.

python examples/imagenet_keras.py                                one process
dream run -n 2 examples/imagenet_keras.py                        two replicas
dream run -n 2 --strategy sharded examples/imagenet_keras.py     or any other word
dream run -n 8 examples/imagenet_keras.py --data /imagenet --arch resnet50 --width 64 --size 224 \
    --epochs 90 --warm-up 5 --batch-size 1024 --lr 0.4 --workers 8 --save runs/resnet50

Without --data a small folder is drawn first (imagenet_images.py). With --save the same line, given
again, goes on where the last one stopped. --double as in imagenet_torch.py.
"""

import argparse
import math
from pathlib import Path

import keras
import numpy as np
from imagenet_data import Folder, drawn
from keras import layers

import dream

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, help="a folder with train/CLASS/* and val/CLASS/*")
parser.add_argument("--arch", choices=list(BLOCKS), default="resnet18")
parser.add_argument("--width", type=int, default=16, help="channels of the first layer (64)")
parser.add_argument("--size", type=int, default=40, help="pixels of a crop (224)")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--warm-up", type=int, default=1, help="epochs")
parser.add_argument("--batch-size", type=int, default=48, help="the global one")
parser.add_argument("--lr", type=float, default=0.1, help="the highest")
parser.add_argument("--workers", type=int, default=1, help="threads that read images")
parser.add_argument("--double", action="store_true", help="float64")
parser.add_argument("--save", metavar="FOLDER", help="checkpoints, to go on from")
args = parser.parse_args()


class Images(keras.utils.PyDataset):
    """Global batches of a folder, in an order of each epoch's own."""

    def __init__(self, folder: Folder, *, train: bool) -> None:
        super().__init__(workers=args.workers)
        self.folder, self.train, self.epoch = folder, train, 0

    def __len__(self) -> int:
        return math.ceil(len(self.folder) / args.batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        epoch = self.epoch if self.train else None
        order = np.arange(len(self.folder))
        if epoch is not None:
            order = np.random.default_rng(epoch).permutation(order)
        rows = order[index * args.batch_size : (index + 1) * args.batch_size]
        samples = [self.folder.sample(row, epoch) for row in rows]
        pixels, labels = zip(*samples, strict=True)
        return np.stack(pixels).astype(keras.config.floatx()), np.array(labels)

    def begin(self, epoch: int, logs: object) -> None:
        self.epoch = epoch


def convolved(x, width: int, size: int, stride: int = 1, *, gamma: str = "ones"):
    x = layers.Conv2D(
        width, size, stride, padding="same", use_bias=False, kernel_initializer="he_normal"
    )(x)
    return layers.BatchNormalization(momentum=0.9, gamma_initializer=gamma)(x)


def block(x, width: int, stride: int):
    """Convolutions, and around them what came in. The last norm starts at 0."""
    if args.arch == "resnet18":
        out = layers.ReLU()(convolved(x, width, 3, stride))
        out = convolved(out, width, 3, gamma="zeros")
    else:
        out = layers.ReLU()(convolved(x, width, 1))
        out = layers.ReLU()(convolved(out, width, 3, stride))
        out = convolved(out, 4 * width, 1, gamma="zeros")
    if x.shape != out.shape:
        x = convolved(x, out.shape[-1], 1, stride)
    return layers.ReLU()(out + x)


def top5(y, out):
    """Whether the right class is among the five likeliest: one value a sample."""
    return keras.ops.in_top_k(y, keras.ops.cast(out, "float32"), 5)


def resnet(classes: int) -> keras.Model:
    image = keras.Input((args.size, args.size, 3))
    x = layers.ReLU()(convolved(image, args.width, 7, 2))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, count in enumerate(BLOCKS[args.arch]):
        for index in range(count):
            x = block(x, args.width * 2**stage, 2 if stage and not index else 1)
    return keras.Model(image, layers.Dense(classes)(layers.GlobalAveragePooling2D()(x)))


keras.config.set_floatx("float64" if args.double else "float32")
with dream.rank_zero_first():
    place = args.data or drawn()
train = Images(Folder(place / "train", args.size), train=True)
val = Images(Folder(place / "val", args.size), train=False)

keras.utils.set_random_seed(0)
with dream.strategy("mirrored"):
    model = resnet(len(train.folder.classes))
    warm, steps = args.warm_up * len(train), args.epochs * len(train)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, max(1, steps - warm), warmup_target=args.lr, warmup_steps=warm
    )
    model.compile(
        keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True, weight_decay=1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", top5],
    )
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=train.begin)]
    if args.save:
        callbacks.append(dream.keras.Checkpoint(args.save, best="val_loss"))
    told = model.fit(
        train,
        validation_data=val,
        epochs=args.epochs,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    ).history

for epoch in range(len(told["loss"])):
    loss, top1, top5 = (told[name][epoch] for name in ("loss", "val_accuracy", "val_top5"))
    print(f"epoch {epoch + 1}: loss {loss:.4f}, top-1 {top1:.3f}, top-5 {top5:.3f}")
