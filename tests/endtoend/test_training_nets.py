"""Two unchanged scripts that train two nets; the port calls them otherwise, and one of them once more."""

from __future__ import annotations

import pytest

from tests.endtoend.trainings import compared, edited

pytest.importorskip("torch", reason="the references are torch's")
pytest.importorskip("mindspore", reason="the ports are MindSpore's")

TORCH = """
import numpy as np, torch
from torch import nn
rng = np.random.default_rng(0)
pictures, numbers = rng.random((24, 6)).astype(np.float32), rng.normal(size=(24, 4)).astype(np.float32)
torch.manual_seed(1)
netG = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh())
netD = nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU(0.2), nn.Linear(5, 1))
criterion = nn.BCEWithLogitsLoss()
optD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.999))
for start in range(0, 24, 8):
    netD.zero_grad()
    output = netD(torch.from_numpy(pictures[start:start + 8]))
    errD_real = criterion(output, torch.ones_like(output))
    errD_real.backward()
    fake = netG(torch.from_numpy(numbers[start:start + 8]))
    output = netD(fake.detach())
    errD_fake = criterion(output, torch.zeros_like(output))
    errD_fake.backward()
    optD.step()
    netG.zero_grad()
    output = netD(fake)
    criterion(output, torch.ones_like(output)).backward()
    optG.step()
"""

MINDSPORE = """
import mindspore, numpy as np
from mindspore import nn, ops, Tensor
rng = np.random.default_rng(0)
pictures, numbers = rng.random((24, 6)).astype(np.float32), rng.normal(size=(24, 4)).astype(np.float32)

class Trainer:
    def __init__(self):
        self.critic = nn.SequentialCell(nn.Dense(6, 5), nn.LeakyReLU(0.2), nn.Dense(5, 1))
        self.generator = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 6), nn.Tanh())
        self.loss_fn = nn.BCEWithLogitsLoss()
        self.opt_d = nn.Adam(self.critic.trainable_params(), 2e-3, 0.5, 0.999)
        self.opt_g = nn.Adam(self.generator.trainable_params(), 1e-3, 0.5, 0.999)
        self.grad_d = mindspore.value_and_grad(self.forward_d, None, self.opt_d.parameters)
        self.grad_g = mindspore.value_and_grad(self.forward_g, None, self.opt_g.parameters)

    def forward_d(self, real, fake):
        real, fake = self.critic(real), self.critic(fake)
        return self.loss_fn(real, ops.ones_like(real)) + self.loss_fn(fake, ops.zeros_like(fake))

    def forward_g(self, noise):
        fake = self.critic(self.generator(noise))
        return self.loss_fn(fake, ops.ones_like(fake))

    def step(self, real, noise):
        _, gradients = self.grad_d(real, ops.stop_gradient(self.generator(noise)))
        self.opt_d(gradients)
        _, gradients = self.grad_g(noise)
        self.opt_g(gradients)

trainer = Trainer()
for start in range(0, 24, 8):
    trainer.step(Tensor(pictures[start:start + 8]), Tensor(numbers[start:start + 8]))
"""

SLOWER = ("self.generator.trainable_params(), 1e-3", "self.generator.trainable_params(), 2e-3")
STEEPER = ("nn.LeakyReLU(0.2)", "nn.LeakyReLU(0.3)")
SMOOTHED = ("ops.ones_like(fake))", "0.9 * ops.ones_like(fake))")
CUT = ("self.critic(self.generator(noise))", "self.critic(ops.stop_gradient(self.generator(noise)))")

CASES = {
    "right": ([], []),
    "the second net's rate": ([SLOWER], [("update", "netG.0", [1, 3, 5], "optimizer-learning-rate")]),
    "a layer of the first": ([STEEPER], [("layer", "netD.1", [0], "leakyrelu-yolo-0.1")]),
    "the second loss": ([SMOOTHED], [("loss", "(loss)", [1, 3, 5], None)]),
    "no gradient comes back": ([CUT], [("layer", "netG.2", [1, 3, 5], "gradient-cut")]),
}


@pytest.mark.parametrize("case", CASES)
def test_two_nets_of_scripts(aligner, tmp_path, case):
    edits, wanted = CASES[case]
    found = compared(aligner, tmp_path, TORCH, edited(MINDSPORE, edits), "6")
    assert [row["step"] for row in found["steps"]] == [*range(6)]
    assert {row["loss"]["reference"] == pytest.approx(row["loss"]["port"], rel=0.1) for row in found["steps"]} == {True}
    assert found["outcome"] == ("diverged" if wanted else "aligned")
    assert len(found["origins"]) == len(wanted)
    for origin, (where, layer, steps, cause) in zip(found["origins"], wanted):
        assert (origin["where"], origin["layer"], origin["steps"]) == (where, layer, steps)
        assert cause in (None, origin["causes"][0]["id"])
    assert not [warning for warning in found["warnings"] if warning["id"] == "other-nets"]


def test_one_net_of_a_port_is_not_held_to_several(aligner, tmp_path):
    (tmp_path / "train.py").write_text(TORCH)
    (tmp_path / "port.py").write_text(edited(MINDSPORE, []))
    assert aligner("capture", "-o", "ref.h5", "--gradients", "--steps", "4", "train.py").returncode == 0
    words = "--gradients", "--from", "ref.h5", "--model", "SequentialCell", "--allow-missing"
    done = aligner("capture", "-o", "port.h5", *words, "port.py")
    assert done.returncode == 2
    assert "several nets that were captured together: netD, netG" in done.stderr
    alone = aligner("capture", "-o", "alone.h5", "--gradients", "--steps", "2", "--model", "SequentialCell", "port.py")
    assert (alone.returncode, "Captured the first 2" in alone.stderr) == (0, True)
