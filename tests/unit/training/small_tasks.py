"""Small trainings in torch: one that is right, and others with a mistake each."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from aligner import Task


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.bn(self.conv(x))).mean((2, 3)))


def batches(count=3, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((4, 3, 8, 8)).astype(np.float32), rng.integers(0, 5, 4)) for _ in range(count)]


def task(optimizer=None, net=Net, count=3, loss=None, **more):
    """A training of `count` batches; `optimizer` makes one of the net."""
    torch.manual_seed(0)
    made = net()
    optimizer = (optimizer or sgd())(made)
    return Task(made, batches(count), loss=loss or nn.CrossEntropyLoss(), optimizer=optimizer, **more)


def sgd(lr=0.1, momentum=0.9, **more):
    return lambda net: torch.optim.SGD(net.parameters(), lr, momentum=momentum, **more)


def of(kind, *given, **more):
    return lambda net: getattr(torch.optim, kind)(net.parameters(), *given, **more)


def without_norm(net):
    """Weight decay for all but the norm and the biases."""
    decayed = [p for p in net.parameters() if p.ndim > 1]
    rest = [p for p in net.parameters() if p.ndim <= 1]
    return torch.optim.SGD([{"params": decayed, "weight_decay": 0.1}, {"params": rest}], 0.1, momentum=0.9)


def scaled(factor):
    def change(parameters):
        for parameter in parameters:
            parameter.grad.mul_(factor)

    return change


def each_clipped(parameters):
    for parameter in parameters:
        nn.utils.clip_grad_norm_([parameter], 0.05)


def by_value_clipped(parameters):
    nn.utils.clip_grad_value_(parameters, 0.01)


def all_clipped(norm):
    return lambda parameters: nn.utils.clip_grad_norm_(parameters, norm)


def clipped_and_divided(norm, scale):
    def change(parameters):
        nn.utils.clip_grad_norm_(parameters, norm)
        for parameter in parameters:
            parameter.grad.div_(scale)

    return change


def divided_and_clipped(norm, scale):
    def change(parameters):
        for parameter in parameters:
            parameter.grad.div_(scale)
        nn.utils.clip_grad_norm_(parameters, norm)

    return change


def crossed(parameters):
    """Of the norm: its two vectors."""
    one, other = parameters[2], parameters[3]
    one.grad, other.grad = other.grad, one.grad


def left(parameters):
    """As they are."""


def loop(
    net,
    capture,
    change=left,
    accumulate=1,
    scale=1.0,
    zeroed=True,
    steps=2,
    inside=1.0,
    kept=False,
    each=None,
    overflow=None,
    skips=True,
):
    """A user's loop: what is done to gradients between the backward run and the update is `change`, to those of each
    batch `each`; `inside` stands in the loss itself, and what is `kept` is not set to zero behind an update. In the
    step of an `overflow` the scale is too large, and the loop `skips` the update."""
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    rows = batches(steps * accumulate)
    for step in range(steps):
        if not kept:
            optimizer.zero_grad()
        for x, y in rows[step * accumulate : (step + 1) * accumulate]:
            if not zeroed:
                optimizer.zero_grad()
            output, label = net(torch.from_numpy(x)), torch.from_numpy(y)
            loss = nn.functional.cross_entropy(output, label) * inside
            capture.lost(output, label, loss)
            before = [parameter.grad for parameter in net.parameters()]
            if each is not None:
                optimizer.zero_grad()
            (loss * (float("inf") if step == overflow else scale)).backward()
            if each is not None:
                each([*net.parameters()])
                for parameter, old in zip(net.parameters(), before):
                    parameter.grad = parameter.grad if old is None else parameter.grad + old
        change([*net.parameters()])
        if not skips or all(parameter.grad.isfinite().all() for parameter in net.parameters()):
            optimizer.step()


def named_sgd():
    """An optimizer of somebody's own, with a decay of which its settings tell nothing."""

    class SGD(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            before = [p.clone() for group in self.param_groups for p in group["params"]]
            super().step(closure)
            for parameter, old in zip((p for group in self.param_groups for p in group["params"]), before):
                parameter.sub_(0.01 * old)

    return lambda net: SGD(net.parameters(), 0.1, momentum=0.9)


class Two(Net):
    def __init__(self):
        super().__init__()
        self.aux = nn.Linear(8, 5)

    def forward(self, x):
        hidden = torch.relu(self.bn(self.conv(x))).mean((2, 3))
        return self.fc(hidden), self.aux(hidden)


def weighed(share):
    entropy = nn.functional.cross_entropy
    return lambda made, label: entropy(made[0], label) + share * entropy(made[1], label)


class Detached(Net):
    """A branch whose gradient is cut."""

    def forward(self, x):
        hidden = torch.relu(self.bn(self.conv(x)))
        return self.fc(0.5 * hidden.mean((2, 3)) + 0.5 * hidden.detach().mean((2, 3)))


def unevenly():
    """The last batch has fewer rows."""
    made = task()
    rows = batches(3)
    rows[2] = rows[2][0][:3], rows[2][1][:3]
    return Task(made.model, rows, loss=made.loss, optimizer=made.optimizer)


MADE = {
    "right": lambda: task(),
    "rate": lambda: task(sgd(0.05)),
    "decay": lambda: task(sgd(weight_decay=0.1)),
    "grouped": lambda: task(without_norm),
    "momentum": lambda: task(sgd(momentum=0.8)),
    "dampened": lambda: task(sgd(dampening=0.5)),
    "nesterov": lambda: task(sgd(nesterov=True)),
    "two": lambda: task(sgd(0.05, weight_decay=0.1)),
    "adam": lambda: task(of("Adam", 1e-3)),
    "adam_betas": lambda: task(of("Adam", 1e-3, betas=(0.8, 0.999))),
    "adam_eps": lambda: task(of("Adam", 1e-3, eps=1e-4)),
    "adam_decay": lambda: task(of("Adam", 1e-3, weight_decay=0.05)),
    "adamw_decay": lambda: task(of("AdamW", 1e-3, weight_decay=0.05)),
    "rmsprop": lambda: task(of("RMSprop", 1e-3)),
    "rmsprop_alpha": lambda: task(of("RMSprop", 1e-3, alpha=0.9)),
    "rmsprop_centered": lambda: task(of("RMSprop", 1e-3, centered=True)),
    "maximized": lambda: task(sgd(maximize=True)),
    "head": lambda: task(lambda net: torch.optim.SGD(net.fc.parameters(), 0.1, momentum=0.9)),
    "odd": lambda: task(named_sgd()),
    "clipped": lambda: task(count=4, accumulate=2, clip_norm=0.25, loss_scale=64.0),
    "loss_sum": lambda: task(loss=nn.CrossEntropyLoss(reduction="sum")),
    "uneven": lambda: unevenly(),
    "two_heads": lambda: task(net=Two, loss=weighed(0.3)),
    "two_heads_other": lambda: task(net=Two, loss=weighed(0.6)),
    "masked": lambda: task(loss=nn.CrossEntropyLoss(ignore_index=0)),
    "penalized": lambda: task(loss=lambda x, label: nn.functional.cross_entropy(x, label) + 0.5),
    "smoothed": lambda: task(loss=nn.CrossEntropyLoss(label_smoothing=0.1)),
    "detached": lambda: task(net=Detached),
}
globals().update(MADE)
