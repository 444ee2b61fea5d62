"""The torch half of each pair of models. `port_keras` has the same names."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    """Layers by name, and a forward in one expression."""

    def __init__(self, forward, **layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self._forward = forward

    def forward(self, *args, **kwargs):
        return self._forward(self, *args, **kwargs)


def dense():
    return Model(
        lambda m, x: m.second(F.gelu(m.first(x))), first=nn.Linear(6, 8), second=nn.Linear(8, 3)
    )


def conv1d():
    return nn.Sequential(nn.Conv1d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))


def conv2d():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding="same"),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(24, 5),
    )


def conv2d_same_stride():
    """TensorFlow's "same" with a stride pads more behind than before."""
    return Model(
        lambda m, x: m.conv(F.pad(x, (0, 1, 0, 1))), conv=nn.Conv2d(3, 4, 3, stride=2, bias=False)
    )


def conv_groups():
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=4, dilation=2), nn.ReLU(), nn.Conv2d(8, 6, 1, groups=2)
    )


def separable():
    """A convolution of each channel, and one that mixes them."""

    def parts(channels, out, **settings):
        count = channels * settings.pop("each", 1)
        bias = settings.pop("bias", True)
        first = nn.Conv2d(channels, count, 3, groups=channels, bias=False, **settings)
        return first, nn.Conv2d(count, out, 1, bias=bias)

    return nn.Sequential(
        *parts(3, 4, each=2, padding=1), nn.ReLU(), *parts(4, 5, stride=2, bias=False),
        nn.Flatten(), nn.Linear(80, 2),
    )  # fmt: skip


def conv3d():
    return nn.Sequential(nn.Conv3d(2, 3, 2), nn.AdaptiveAvgPool3d(1), nn.Flatten())


def generator():
    """A dense layer's features opened to a map."""
    return nn.Sequential(
        nn.Linear(5, 18), nn.BatchNorm1d(18), nn.ReLU(), nn.Unflatten(1, (2, 3, 3)),
        nn.ConvTranspose2d(2, 3, 2, stride=2),
    )  # fmt: skip


def batch_norm():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=1e-3, momentum=0.01), nn.ReLU(), nn.Flatten(),
        nn.BatchNorm1d(144, eps=1e-3, momentum=0.01), nn.Linear(144, 3),
    )  # fmt: skip


def norms():
    return nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8, eps=1e-3), nn.Linear(8, 8), nn.RMSNorm(8, eps=1e-6),
        nn.GroupNorm(2, 8, eps=1e-3), nn.PReLU(8),
    )  # fmt: skip


def embedding():
    return Model(lambda m, x: m.head(m.table(x).mean(1)), table=nn.Embedding(11, 6),
                 head=nn.Linear(6, 2))  # fmt: skip


def attention():
    def forward(m, x):
        x = m.norm(x + m.attention(x, x, x, need_weights=False)[0])
        return m.head(x)

    return Model(
        forward,
        attention=nn.MultiheadAttention(8, 2, batch_first=True),
        norm=nn.LayerNorm(8, eps=1e-3),
        head=nn.Linear(8, 3),
    )


def encoder():
    """Layers that are called in another order than they are defined in."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    return Model(lambda m, x: m.head(m.layer(x)[:, 0]), head=nn.Linear(8, 3), layer=layer)


def lstm():
    return Model(lambda m, x: m.head(m.lstm(x)[0][:, -1]), lstm=nn.LSTM(5, 4, batch_first=True),
                 head=nn.Linear(4, 2))  # fmt: skip


def time_first():
    def forward(m, x):
        x = m.lstm(x.transpose(0, 1))[0]
        return m.head(m.attention(x, x, x)[0].transpose(0, 1))

    return Model(
        forward, lstm=nn.LSTM(5, 4), attention=nn.MultiheadAttention(4, 2), head=nn.Linear(4, 2)
    )


def gru():
    torch.manual_seed(1)
    return Model(lambda m, x: m.head(m.gru(x)[0][:, -1]), gru=nn.GRU(5, 4, batch_first=True),
                 head=nn.Linear(4, 2))  # fmt: skip


def bidirectional():
    return Model(
        lambda m, x: m.head(m.rnn(x)[0]),
        rnn=nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True),
        head=nn.Linear(8, 2),
    )


def inputs():
    return Model(
        lambda m, x0, x1: (m.a(x0) + m.b(x1), m.b(x1)), a=nn.Linear(3, 4), b=nn.Linear(5, 4)
    )


def image():
    """An image that goes out as one."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))


class Tokens(nn.Module):
    """A parameter of its own, a layer used twice, and layers defined in another order."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.start = nn.Parameter(torch.randn(6))
        self.mix = nn.Linear(6, 6)
        self.table = nn.Embedding(11, 6)

    def forward(self, tokens, weights):
        x = self.table(tokens) + self.start
        x = self.mix(torch.relu(self.mix(x)))
        return self.head((x * weights[..., None]).mean(1))


def tokens():
    return Tokens()


def classes():
    return nn.Linear(6, 4)


def conv1d_norm():
    return nn.Sequential(nn.BatchNorm1d(3, eps=1e-3, momentum=0.01), nn.Conv1d(3, 4, 3))


def gray():
    """Images with no channel."""
    return Model(lambda m, x: m.head(m.conv(x.unsqueeze(1)).flatten(1)), conv=nn.Conv2d(1, 4, 3),
                 head=nn.Linear(48, 3))  # fmt: skip


def blocks():
    return nn.Sequential(
        nn.Conv1d(3, 4, 3), nn.Flatten(), nn.LayerNorm(28, eps=1e-3), nn.Linear(28, 2)
    )


def flat_image():
    return nn.Sequential(nn.Flatten(), nn.Linear(60, 4), nn.ReLU(), nn.Linear(4, 2))


# what is wrong in them


def wrong_eps():
    model = batch_norm()
    model[1].eps = 1e-5
    return model


def wrong_momentum():
    model = batch_norm()
    model[4].momentum = 0.1
    return model


def wrong_gelu():
    model = dense()
    model._forward = lambda m, x: m.second(F.gelu(m.first(x), approximate="tanh"))
    return model


class Turned(nn.Module):
    def forward(self, x):
        return x.permute(0, 2, 3, 1)


def flat_as_keras():
    return nn.Sequential(nn.Conv2d(3, 4, 3), Turned(), nn.Flatten(), nn.BatchNorm1d(24, eps=1e-3),
                         nn.Linear(24, 5))  # fmt: skip


def packed():
    def forward(m, tokens):
        lengths = (tokens != 0).sum(1)
        steps = nn.utils.rnn.pack_padded_sequence(
            m.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        return m.head(m.lstm(steps)[1][0][-1])

    return Model(forward, embedding=nn.Embedding(11, 4), lstm=nn.LSTM(4, 3, batch_first=True),
                 head=nn.Linear(3, 2))  # fmt: skip


def cropped():
    return Model(lambda m, x: m.up(x)[..., :-1, :-1], up=nn.ConvTranspose2d(3, 4, 3, 2))


def cropped_early():
    return Model(lambda m, x: m.up(x)[..., 1:, 1:], up=nn.ConvTranspose2d(3, 4, 3, 2))


def tied():
    model = Model(lambda m, x: m.head(m.embedding(x)), embedding=nn.Embedding(11, 4),
                  head=nn.Linear(4, 11, bias=False))  # fmt: skip
    model.head.weight = model.embedding.weight
    return model


def untied():
    model = tied()
    model.head = nn.Linear(4, 11, bias=False)
    return model


def heads():
    return Model(lambda m, x: (m.score(x), m.kind(x)), score=nn.Linear(6, 1), kind=nn.Linear(6, 3))


def _steps(turn, back):
    return Model(lambda m, x: back(m.head(m.norm(m.first(turn(x)))), x), first=nn.Linear(6, 4),
                 norm=nn.LayerNorm(4), head=nn.Linear(4, 2))  # fmt: skip


def steps():
    return _steps(lambda x: x.flatten(0, 1), lambda y, x: y.view(*x.shape[:2], 2))


def steps_turned():
    return _steps(lambda x: x.transpose(0, 1), lambda y, _: y.transpose(0, 1))


def wrong_time():
    return _steps(lambda x: x.transpose(0, 1), lambda y, x: y.reshape(*x.shape[:2], 2))


def wrong_bias():
    model = dense()
    model.second = nn.Linear(8, 3, bias=False)
    return model


def wrong_padding():
    return Model(lambda m, x: m.conv(x), conv=nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False))


def wrong_softmax():
    model = dense()
    inner = model._forward
    model._forward = lambda m, x: inner(m, x).softmax(-1)
    return model


def wrong_layer_norm():
    model = norms()
    model[1].eps = 1e-5
    return model


def wrong_dropout():
    model = conv2d()
    model[6].p = 0.25
    return model


def wrong_detach():
    model = dense()
    model._forward = lambda m, x: m.second(F.gelu(m.first(x)).detach())
    return model


def wrong_frozen():
    model = dense()
    model.first.requires_grad_(False)
    return model


def wrong_units():
    return Model(lambda m, x: m.second(m.first(x)), first=nn.Linear(6, 8), second=nn.Linear(8, 4))


def wrong_import():
    import no_such_module  # noqa: F401


def normed():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.Linear(8, 3))


def coarse():
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).to(torch.bfloat16)


def no_model():
    return 3


def dies():
    os._exit(3)


def sleeps():
    time.sleep(60)


# weights converted by hand, rightly and wrongly: from `gru` and the others as they are seeded


def hasty_gru():
    model = gru()
    for value in model.gru.parameters():
        r, z, n = value.data.chunk(3)
        value.data = torch.cat([z, r, n]).clone()
    return model


def hasty_transpose():
    model = square()
    model.first.weight.data = model.first.weight.data.T.clone()
    return model


def square():
    torch.manual_seed(1)
    return Model(lambda m, x: m.second(m.first(x)), first=nn.Linear(6, 6), second=nn.Linear(6, 6))


def hasty_flatten():
    model = conv2d()
    weight = model[7].weight.data
    model[7].weight.data = weight.reshape(5, 6, 2, 2).permute(0, 2, 3, 1).reshape(5, 24).clone()
    return model
