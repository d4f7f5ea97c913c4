"""What rounding makes of a reference, measured on itself: `aligner capture --truth --expect float16`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import aligner  # noqa: E402 - only after torch is known to be there

NET = """
import torch
from torch import nn

class Net(nn.Module):
    '''Logits of 50: a softmax that float16 cannot follow.'''
    def __init__(self):
        super().__init__()
        self.up, self.norm = nn.Linear(8, 32), nn.BatchNorm1d(32)
        self.softmax, self.down = nn.Softmax(-1), nn.Linear(32, 4)
    def forward(self, x):
        return self.down(self.softmax(80 * self.norm(self.up(x))))

def build():
    return Net(), (torch.randn(64, 8),)

class Half(Net):
    def forward(self, x):
        return super().forward(x.half()).float()

def build_half():
    return Half().half(), (torch.randn(64, 8),)

def build_wrong():
    net = Half().half()
    net.norm.eps = 0.2
    return net, (torch.randn(64, 8),)
"""


@pytest.fixture(scope="module")
def run(torch_at_hand):
    return torch_at_hand.run


@pytest.fixture(scope="module")
def folder(tmp_path_factory, run):
    folder = tmp_path_factory.mktemp("expectation")
    (folder / "net.py").write_text(NET)
    for name, options in (("plain.h5", ()), ("ref.h5", ("--truth", "--expect", "float16", "--expect", "bfloat16"))):
        done = run(folder, "capture", "net.py:build", "-o", name, *options)
        assert done.returncode == 0, done.stderr
        assert "caution" not in done.stderr
    return folder


def measured(path):
    with aligner.open(path) as dump:
        return {(f["by"], f["at"][1], f["at"][3]): f for kind, f in dump.findings if kind == "expected"}


def test_each_type_is_measured_at_each_place(folder):
    found = measured(folder / "ref.h5")
    assert {by for by, *_ in found} == {"float64", "float16", "bfloat16"}
    own = {by: found[by, "up", "output.0"]["own"] for by in ("float64", "float16", "bfloat16")}
    assert 1e-9 < own["float64"] < 1e-6 < own["float16"] < 2e-3 < own["bfloat16"] < 2e-2
    assert found["float16", "softmax", "output.0"]["own"] > 2e-3, (
        "large logits cost more than the output's own rounding"
    )
    assert found["float16", "down", "output.0"]["free"] > found["float16", "down", "output.0"]["own"]


def test_the_values_are_those_of_a_capture_without_it(folder):
    with aligner.open(folder / "plain.h5") as one, aligner.open(folder / "ref.h5") as other:
        assert [e.content for e in one.entries] == [e.content for e in other.entries]
        assert not measured(folder / "plain.h5")


def test_a_right_port_in_float16_is_explained_and_a_wrong_one_is_not(folder, run):
    for factory in ("build_half", "build_wrong"):
        done = run(folder, "capture", f"net.py:{factory}", "--from", "ref.h5", "-o", f"{factory}.h5")
        assert done.returncode == 0, done.stderr
    right = aligner.compare(folder / "ref.h5", folder / "build_half.h5")
    assert right.aligned
    assert not right.origins
    assert not right.suspects
    assert right.counts["rounding"] > 0
    ratios = [verdict.ratio for verdict in right.pairs if verdict.ratio is not None]
    assert ratios
    assert max(ratios) < 8
    wrong = aligner.compare(folder / "ref.h5", folder / "build_wrong.h5")
    assert [(o.layer, o.where) for o in wrong.origins] == [("norm", "layer")]


def test_without_a_forced_pass_the_expectation_alone_explains(folder, run):
    for name in ("plain.h5", "ref.h5"):
        done = run(folder, "capture", "net.py:build_half", "--from", name, "-o", "free.h5", "--free-only", "--force")
        assert done.returncode == 0, done.stderr
        result = aligner.compare(folder / name, folder / "free.h5")
        assert result.aligned is (name == "ref.h5")


def test_it_is_asked_of_references_only(folder, run):
    done = run(folder, "capture", "net.py:build_half", "--from", "ref.h5", "-o", "x.h5", "--truth")
    assert done.returncode == 2
    assert "--truth" in done.stderr


def test_a_net_that_cannot_run_in_a_type_is_captured_all_the_same(folder, run):
    (folder / "odd.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(3, 3)\n"
        "    def forward(self, x):\n        assert self.fc(x).dtype == torch.float32\n        return self.fc(x)\n"
        "def build():\n    return Net(), (torch.ones(2, 3),)\n"
    )
    done = run(folder, "capture", "odd.py:build", "-o", "odd.h5", "--truth")
    assert done.returncode == 0, done.stderr
    assert "float64" in done.stderr
    with aligner.open(folder / "odd.h5") as dump:
        assert dump.complete
        assert [note.message for note in dump.notes] == ["expectation-failed"]
