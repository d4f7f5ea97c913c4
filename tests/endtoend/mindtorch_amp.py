"""A ResNet block and an encoder of OpenI's MindTorch under mixed precision: each case against one reference, as JSON.

    python mindtorch_amp.py REFERENCE residual O2 O2:eps ...

MindSpore's mixed precision rewrites the source of a net's classes: they must stand in a file, with its imports on top.
"""

from __future__ import annotations

import json
import sys

from aligner_hooks.mindtorch_ import shim

import aligner
from aligner.capture.session import Options

shim.put_in()

import mindspore  # noqa: E402 - after the shim
from mindspore import amp  # noqa: E402 - as above
from mindtorch import torch  # noqa: E402 - as above
from mindtorch.torch import nn  # noqa: E402 - as above

# Small operations one after the other: waiting for each costs less than handing it to other threads.
mindspore.set_context(pynative_synchronize=True)


class Residual(nn.Module):
    def __init__(self, eps=1e-5, act=nn.ReLU):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8, eps=eps)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.down = nn.Sequential(nn.Conv2d(3, 8, 1, 2, bias=False), nn.BatchNorm2d(8))
        self.relu, self.pool, self.fc = act(), nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.pool(self.relu(y + self.down(x))), 1))


def encoder(eps=1e-5):
    """A Sequential: what runs of a rewritten one stands in a list of its own."""
    return nn.Sequential(
        nn.Embedding(20, 16), nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), nn.LayerNorm(16, eps=eps)
    )


NETS = {"residual": Residual, "encoder": encoder}
MISTAKES = {"eps": {"eps": 0.05}, "act": {"act": nn.SiLU}}


def put(net, level):
    """The net at a level, or with casts by hand."""
    if level == "to_float":
        return net.to_float(mindspore.float16)
    if level == "one":
        net.bn2.to_float(mindspore.float16)
        return net
    if level == "wrapped":
        return torch.amp.auto_mixed_precision(net, "O2")
    if level == "auto-grad":
        return amp.auto_mixed_precision(net, "auto").set_grad()
    return amp.auto_mixed_precision(net, level)


def said(reference, name, case):
    """What compare says of one case."""
    level, _, mistake = case.partition(":")
    net = put(NETS[name](**MISTAKES.get(mistake, {})), level).eval()
    replay = aligner.replay(reference, net)
    with replay.capture("port.h5", Options(force=True, operations=True)):
        net(*replay.inputs(0))
    found = aligner.compare(reference, "port.h5")
    port = aligner.open("port.h5")
    return {
        "aligned": found.aligned,
        "origins": [(o.layer, [(cause.id, cause.confirmed) for cause in o.causes[:1]]) for o in found.origins],
        "suspects": [place.layer for place in found.suspects],
        "amp": found.port.get("amp"),
        "model": found.port.get("model"),
        "layers": {layer.path: layer.type for layer in port.layers.values()},
        "parameters": sorted(f"{e.key.layer}.{e.key.slot}" for e in port.entries if e.key.phase.value == "parameter"),
        "casts": {f"{c.layer} {c.part}".strip(): (c.port.dtype, c.exception) for c in found.casts},
        "notes": [message for message, _ in found.warnings],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps({case: said(*sys.argv[1:3], case) for case in sys.argv[3:]}))
