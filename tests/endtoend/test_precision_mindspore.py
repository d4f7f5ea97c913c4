"""Where MindSpore on CPU computes otherwise than torch does, and the answer says so: nobody's mistake, but known."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
mindspore = pytest.importorskip("mindspore")
from mindspore import nn as cells  # noqa: E402 - only after it is known to be there
from mindspore import ops  # noqa: E402 - as above
from torch import nn  # noqa: E402 - as above

import aligner  # noqa: E402 - as above
from aligner import cli  # noqa: E402 - as above
from aligner.capture.session import Options  # noqa: E402 - as above


class Net(nn.Module):
    def __init__(self, code, layer=None):
        super().__init__()
        self.first, self.second, self.code = nn.Linear(16, 16), nn.Linear(16, 16), [code]
        if layer is not None:
            self.layer = layer

    def forward(self, x):
        return self.code[0](self, self.first(x))


class Port(cells.Cell):
    def __init__(self, code, layer=None):
        super().__init__()
        self.first, self.second, self.code = cells.Dense(16, 16), cells.Dense(16, 16), [code]
        if layer is not None:
            self.layer = layer

    def construct(self, x):
        return self.code[0](self, self.first(x))


def through(net, y):
    return net.second(net.layer(y))


def answer(folder, net, port, x):
    net.eval()
    port.set_train(False)
    with torch.no_grad(), aligner.capture(net, folder / "ref.h5"):
        net(x)
    replay = aligner.replay(folder / "ref.h5", port)
    with replay.capture(folder / "port.h5", Options(force=True)):
        port(*replay.inputs(0))
    return aligner.compare(folder / "ref.h5", folder / "port.h5")


@pytest.mark.parametrize(
    ("net", "port", "where", "cause", "confirmed"),
    [
        (Net(through, nn.ReLU()), Port(through, cells.ReLU()), "layer", "framework-layer-differs", False),
        (Net(through, nn.Softmax(-1)), Port(through, cells.Softmax(-1)), "layer", "framework-layer-differs", False),
        (
            Net(lambda net, y: net.second(torch.relu(y))),
            Port(lambda net, y: net.second(ops.relu(y))),
            "glue",
            "nan-hidden",
            False,
        ),
        (
            Net(lambda net, y: net.second(y.clamp(-0.5, 1.0))),
            Port(lambda net, y: net.second(ops.clamp(y, -0.5, 1.0))),
            "glue",
            "nan-hidden",
            False,
        ),
    ],
    ids=["relu", "softmax", "relu in code", "clamp in code"],
)
def test_nan_is_hidden(tmp_path, net, port, where, cause, confirmed):
    with torch.no_grad():
        net.first.bias[3] = float("nan")
    (origin,) = answer(tmp_path, net, port, torch.randn(4, 16)).origins
    found = origin.causes[0]
    assert (origin.where, found.id, found.confirmed) == (where, cause, confirmed)


def test_erfinv_near_its_edges(tmp_path):
    torch.manual_seed(0)
    net = Net(lambda net, y: net.second(torch.erfinv(net.layer(y))), nn.Sigmoid())
    port = Port(lambda net, y: net.second(ops.erfinv(net.layer(y))), cells.Sigmoid())
    (origin,) = answer(tmp_path, net, port, 4 * torch.randn(64, 16)).origins
    assert (origin.causes[0].id, origin.causes[0].confirmed) == ("framework-differs", False)
    dumps = [str(tmp_path / name) for name in ("ref.h5", "port.h5")]
    assert cli.main(["compare", *dumps, "--repro", str(tmp_path / "alone"), "--quiet"]) == 1
    (program,) = (tmp_path / "alone").glob("*.py")
    assert program.name == "erfinv.repro.py"
    assert "result = ops.erfinv(ms.Tensor(data['input.0']))" in program.read_text()
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout[:18]) == (1, "output.0: max abs ")


def test_ties_in_topk(tmp_path):
    torch.manual_seed(0)
    net = Net(lambda net, y: (net.second(torch.round(y)), *torch.topk(torch.round(y), 4)))
    port = Port(lambda net, y: (net.second(ops.round(y)), *ops.topk(ops.round(y), 4)))
    (origin,) = answer(tmp_path, net, port, 2 * torch.randn(8, 16)).origins
    assert (origin.causes[0].id, origin.causes[0].confirmed) == ("line-differs", False)
