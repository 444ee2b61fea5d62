"""MNIST in Keras as the tutorials have it, CNN, arguments and all: the block is what is added.

python examples/mnist_keras.py --epochs 3 --lr 0.003 --save cnn.keras     one process
dream run -n 2 examples/mnist_keras.py --epochs 3                       the same figures
KERAS_BACKEND=torch python examples/mnist_keras.py                      on torch

The images are scikit-learn's digits, drawn larger; --data FOLDER takes MNIST's own files.
"""

import argparse

import keras
from keras import layers
from mnist_data import handwriting

import dream

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.003)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=64, help="the global one")
parser.add_argument("--save", metavar="FILE", help="where the model goes")
parser.add_argument("--data", metavar="FOLDER", help="MNIST's own four files")
args = parser.parse_args()

keras.utils.set_random_seed(0)
(x, y), (x_test, y_test) = handwriting(args.data)

with dream.strategy("mirrored"):
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(args.lr),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    told = model.fit(
        x[..., None], y, batch_size=args.batch_size, epochs=args.epochs, verbose=0,
        validation_data=(x_test[..., None], y_test),
    ).history  # fmt: skip
    for epoch, (loss, tested, right) in enumerate(
        zip(told["loss"], told["val_loss"], told["val_accuracy"], strict=True), 1
    ):
        print(f"epoch {epoch}: loss {loss:.4f}, test loss {tested:.4f}, test accuracy {right:.4f}")

    if args.save:
        model.save(args.save)  # rank 0 writes
