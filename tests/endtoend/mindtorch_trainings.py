"""Trainings in torch's words, by torch (`reference_*`) and by whichever mindtorch is here (`port_*`).

mindnlp's optimizers have no kernels on a CPU: `own` brings one that all three run.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tests.endtoend.mindtorch_nets import mindtorch_package, torch_package

SCHEDULED = {"accumulate": 2, "clip_norm": 0.3, "loss_scale": 16.0}


def heavy_ball(torch):
    """SGD with momentum, and a weight decay beside the gradient."""

    class HeavyBall(torch.optim.Optimizer):
        def __init__(self, params, lr, beta=0.9, weight_decay=0.01):
            super().__init__(params, {"lr": lr, "beta": beta, "weight_decay": weight_decay})

        def step(self, grads=None):
            with torch.no_grad():
                for group in self.param_groups:
                    for number, param in enumerate(group["params"]):
                        grad = param.grad if grads is None else grads[number]
                        kept = self.state[param].setdefault("average", torch.zeros_like(param))
                        kept.copy_(kept * group["beta"] + grad)
                        param.copy_(param * (1 - group["lr"] * group["weight_decay"]) - kept * group["lr"])

    return HeavyBall


def batches(torch):
    random = np.random.default_rng(0)
    for _ in range(4):
        x, label = random.standard_normal((4, 6)).astype(np.float32), random.integers(0, 3, 4)
        yield torch.tensor(x), torch.tensor(label)


def net(torch, nn):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def task(package, optimizer, scheduled=False, **more):
    """What a factory returns."""
    import aligner

    torch, nn = package()
    model = net(torch, nn)
    made = optimizer(torch)(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(made, 1, 0.5) if scheduled else None
    loss = nn.CrossEntropyLoss()
    return aligner.Task(model, [*batches(torch)], loss=loss, optimizer=made, lr_schedule=schedule, **more)


def sgd(lr=0.1, momentum=0.9):
    return lambda torch: partial(torch.optim.SGD, lr=lr, momentum=momentum, weight_decay=0.01)


def adamw(torch):
    return partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1)


def own(lr=0.1):
    return lambda torch: partial(heavy_ball(torch), lr=lr)


reference_sgd = partial(task, torch_package, sgd(), True, **SCHEDULED)
port_sgd = partial(task, mindtorch_package, sgd(), True, **SCHEDULED)
reference_adamw = partial(task, torch_package, adamw)
port_adam = partial(task, mindtorch_package, lambda torch: partial(torch.optim.Adam, lr=0.01, weight_decay=0.1))
reference_scheduled = partial(task, torch_package, sgd(), True)
reference_own = partial(task, torch_package, own())
port_own = partial(task, mindtorch_package, own())
port_own_rate = partial(task, mindtorch_package, own(0.2))
port_own_clipped = partial(task, mindtorch_package, own(), clip_norm=0.1)
