"""A disk that gets full while a training is captured: the training goes on, and the steps until then are judged."""

from __future__ import annotations

import json

import pytest

import aligner as api
from aligner.record import Phase

pytest.importorskip("torch", reason="one framework is enough to fill a disk")

# In step 7 no file may become longer than the dump is.
SCRIPT = """
import os, resource, sys
import torch
from torch import nn
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(16, 300), nn.ReLU(), nn.Linear(300, 1000), nn.ReLU(), nn.Linear(1000, 4))
optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)

def fill(step, place):
    if step == 7 and sys.argv[1:] == [place]:
        size = os.path.getsize("x.h5")
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

for step in range(10):
    x, y = torch.randn(6, 16), torch.arange(6) % 4
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    fill(step, "backward")
    loss.backward()
    fill(step, "update")
    optimizer.step()
    print(step, loss.item().hex())
"""


@pytest.mark.parametrize(("side", "place"), [("port", "backward"), ("port", "update"), ("reference", "update")])
def test_steps_before_the_disk_was_full_are_judged(tmp_path, warm, side, place):
    """And nobody says that a side made no update, or not of all parameters, where it was not recorded."""
    (tmp_path / "train.py").write_text(SCRIPT)
    whole = warm("capture", "-o", "ref.h5", "--gradients", "--steps", 10, "train.py")
    assert whole.returncode == 0, whole.stderr
    told = ("--from", "ref.h5") if side == "port" else ("--steps", 10)
    full = warm("capture", "-o", "x.h5", *told, "--gradients", "train.py", place)
    assert full.returncode == 3
    assert full.stdout == whole.stdout
    with api.open(tmp_path / "x.h5") as dump:
        dump.verify()
        assert (list(dump.steps), dump.complete) == ([*range(8)], False)
        assert f"the {len(dump.entries)} records captured so far are readable" in full.stderr
        updated = [sum(e.key[:2] == (step, Phase.UPDATE) for e in dump.entries) for step in range(8)]
        assert updated[:7] == [12] * 7
        assert updated[7] < 12
        for entry in dump.entries:
            entry.raw()
    dumps = ("ref.h5", "x.h5") if side == "port" else ("x.h5", "ref.h5")
    done = warm("compare", *dumps)
    assert done.returncode == 1
    assert f"the {side}'s capture ended early in step 7" in " ".join(done.stdout.split())
    assert "does not give" not in done.stdout
    found = json.loads(warm("compare", *dumps, "--json").stdout)
    assert found["origins"] == []
    assert [row["step"] for row in found["steps"]][:7] == [*range(7)]
    assert not [pair for pair in found["pairs"] if pair["outcome"] in ("origin", "inherited")]
