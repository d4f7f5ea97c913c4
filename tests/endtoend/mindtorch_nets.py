"""Nets in torch's words, made by torch (`reference_*`) and by whichever mindtorch is here (`port_*`)."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import numpy as np


def torch_package():
    return import_module("torch"), import_module("torch.nn")


def mindtorch_package():
    from aligner_hooks.mindtorch_ import make_adapter

    make_adapter()
    package = import_module("aligner_hooks.mindtorch_.package").package()
    return package.torch, package.nn


def lenet(torch, nn):
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def residual(torch, nn, eps=1e-5):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8, eps=eps)
            self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
            self.down = nn.Sequential(nn.Conv2d(3, 8, 1, 2, bias=False), nn.BatchNorm2d(8))
            self.relu, self.pool, self.fc = nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)

        def forward(self, x):
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            return self.fc(torch.flatten(self.pool(self.relu(y + self.down(x))), 1))

    return Block()


def encoder(torch, nn, eps=1e-5):
    return nn.Sequential(
        nn.Embedding(20, 16), nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), nn.LayerNorm(16, eps=eps)
    )


def recurrent(kind, torch, nn):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.fc = getattr(nn, kind)(6, 8, 2, batch_first=True, bidirectional=True), nn.Linear(16, 3)

        def forward(self, x):
            return self.fc(self.rnn(x)[0])

    return Net()


def operations(torch, nn):
    """Functions that packages called mindtorch compute otherwise than torch."""
    functional = nn.functional

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(1, 2)
            self.grown = nn.Conv2d(1, 2, 1)

        def forward(self, x):
            x = self.second(torch.fmod(3 * self.first(x), 0.7))
            x = self.grown(functional.interpolate(x.reshape(2, 1, 2, 3), size=(4, 6), mode="bicubic"))
            x = functional.smooth_l1_loss(x, 0.1 * x)
            return self.last(x.sum().reshape(1, 1))

    return Net()


def _built(make, package, x):
    return lambda: (make(*package()), (x,))


def _random(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


NETS = {
    "lenet": (lenet, _random(2, 1, 28, 28)),
    "residual": (residual, _random(2, 3, 16, 16)),
    "encoder": (encoder, np.arange(14).reshape(2, 7)),
    "lstm": (partial(recurrent, "LSTM"), _random(2, 5, 6)),
    "gru": (partial(recurrent, "GRU"), _random(2, 5, 6)),
    "operations": (operations, _random(2, 6)),
}
for _name, (_make, _x) in NETS.items():
    globals()[f"reference_{_name}"] = _built(_make, torch_package, _x)
    globals()[f"port_{_name}"] = _built(_make, mindtorch_package, _x)
port_other_eps = _built(partial(encoder, eps=0.05), mindtorch_package, NETS["encoder"][1])
port_careless = _built(partial(residual, eps=1e-2), mindtorch_package, NETS["residual"][1])
