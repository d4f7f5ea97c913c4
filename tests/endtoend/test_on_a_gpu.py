"""What is done on the CPU everywhere else, done where torch has a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from aligner.dump.reader import open_dump  # noqa: E402 - only after torch is known to be there

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

NET = """
import sys
import torch
from torch import nn

torch.backends.cudnn.allow_tf32 = False


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.register_buffer("slopes", torch.linspace(0.1, 0.4, 4)[:, None, None], persistent=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        places = torch.arange(length, device=x.device)
        scores = q @ k.transpose(-1, -2) / 8**0.5 - self.slopes * (places[:, None] - places[None, :]).abs()
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 32, 4, stride=4), nn.BatchNorm2d(32, eps=1e-3)
        self.attention, self.last, self.head = Attention(), nn.LayerNorm(32), nn.Linear(32, 5)

    def forward(self, image):
        x = self.norm(self.stem(image)).flatten(2).transpose(1, 2)
        x = x + self.attention(x)
        return self.head(self.last(x).mean(1))


def build():
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(2, 3, 32, 32),)


if __name__ == "__main__":
    net, inputs = build()
    with torch.no_grad():
        net.to(sys.argv[1])(*(one.to(sys.argv[1]) for one in inputs))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET, encoding="utf-8")
    told("capture", "net.py:build", "-o", "ref.h5")
    return tmp_path


def told(*words, code=0):
    done = subprocess.run([sys.executable, "-m", "aligner", *words], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr[-2000:] + done.stdout[-2000:]
    return done.stdout + done.stderr


def compared(code=0):
    return json.loads(told("compare", "ref.h5", "port.h5", "--json", "--quiet", code=code))


def test_the_same_net_on_a_gpu_is_right(folder):
    told("capture", "net.py:build", "-o", "port.h5", "--from", "ref.h5", "--device", "gpu")
    found = compared()
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])


def test_the_dump_says_which_gpu(folder):
    told("capture", "net.py:build", "-o", "port.h5", "--from", "ref.h5", "--device", "cuda:0")
    with open_dump("port.h5") as dump:
        assert dump.header["device_name"] == torch.cuda.get_device_name(0)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("/ 8**0.5 -", "-"),
        ("softmax(-1)", "softmax(-2)"),
        (".transpose(1, 2).reshape(batch, length, width)", ".reshape(batch, length, width)"),
        ("eps=1e-3", "eps=1e-5"),
        ("linspace(0.1, 0.4, 4)", "linspace(0.1, 0.5, 4)"),
    ],
)
def test_a_mistake_is_proved_on_the_gpu_and_its_patch_makes_the_port_right(folder, right, wrong):
    (folder / "port.py").write_text(NET.replace(right, wrong), encoding="utf-8")
    told("capture", "port.py:build", "-o", "port.h5", "--from", "ref.h5", "--device", "gpu")
    found = compared(code=1)
    assert len(found["origins"]) == 1
    told("compare", "ref.h5", "port.h5", "--patch", "fix.diff", "--quiet", code=1)
    subprocess.run(["git", "apply", "fix.diff"], check=True)
    told("capture", "port.py:build", "-o", "port.h5", "--from", "ref.h5", "--device", "gpu", "--force")
    assert compared()["outcome"] == "aligned"


def test_a_script_that_goes_to_the_gpu_by_itself(folder):
    told("capture", "-o", "port.h5", "net.py", "cuda")
    assert compared()["outcome"] == "aligned"


def test_autocast(folder):
    (folder / "port.py").write_text(
        NET.replace(
            "    def forward(self, image):", '    @torch.autocast("cuda", torch.float16)\n    def forward(self, image):'
        ),
        encoding="utf-8",
    )
    told("capture", "port.py:build", "-o", "port.h5", "--from", "ref.h5", "--device", "gpu")
    assert compared()["origins"] == []


def test_a_gpu_that_is_not_there(folder):
    assert "cuda:77" in told("capture", "net.py:build", "-o", "port.h5", "--device", "cuda:77", code=2)


def test_tf32_is_told_of(folder):
    (folder / "port.py").write_text(NET.replace("allow_tf32 = False", "allow_tf32 = True"), encoding="utf-8")
    told("capture", "port.py:build", "-o", "port.h5", "--from", "ref.h5", "--device", "gpu")
    assert (
        "tf32"
        in subprocess.run(
            [sys.executable, "-m", "aligner", "compare", "ref.h5", "port.h5"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    )
