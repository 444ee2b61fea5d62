"""A student learns from a teacher's soft answers: compute_loss of one's own."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(38)


class Distiller(keras.Model):
    def __init__(self, student, teacher, share=0.3, temperature=3.0):
        super().__init__()
        self.student, self.teacher = student, teacher
        self.share, self.temperature = share, temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        soft = ops.softmax(self.teacher(x, training=False) / self.temperature, axis=1)
        mine = ops.softmax(y_pred / self.temperature, axis=1)
        hard_loss = super().compute_loss(x, y, y_pred, sample_weight)
        soft_loss = ops.mean(keras.losses.kl_divergence(soft, mine)) * self.temperature**2
        return self.share * hard_loss + (1 - self.share) * soft_loss

    def call(self, x):
        return self.student(x)


x = np.random.randn(84, 6).astype("float32")
y = np.argmax(x[:, :4], axis=1)
teacher = keras.Sequential([keras.Input((6,)), layers.Dense(20, "relu"), layers.Dense(4)])
teacher.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
taught = teacher.fit(x, y, batch_size=16, epochs=1, verbose=0)
teacher.trainable = False

student = keras.Sequential([keras.Input((6,)), layers.Dense(5, "relu"), layers.Dense(4)])
model = Distiller(student, teacher)
model.compile(
    keras.optimizers.SGD(0.1),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["sparse_categorical_accuracy"],
)
log = model.fit(x, y, batch_size=16, epochs=2, verbose=0)

models = [student, teacher]
history = [*taught.history["loss"], *log.history["loss"]]
history += log.history["sparse_categorical_accuracy"]
