"""Causes in code between layers, from a net to the answer: torch on both sides, so the mistake is the planted one."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

import aligner  # noqa: E402 - as above
from aligner.capture.session import Options  # noqa: E402 - as above


class Head(nn.Module):
    """Predictions of three anchors: as they are, and decoded in a way that no formula of a few values gives."""

    def __init__(self, turned=True):
        super().__init__()
        self.turned = turned
        self.conv = nn.Conv2d(4, 15, 1)

    def forward(self, x):
        x = self.conv(x)
        batch, _, high, wide = x.shape
        x = x.view(batch, 3, 5, high, wide).permute(0, 1, 3, 4, 2) if self.turned else x.view(batch, 3, high, wide, 5)
        y = torch.exp(3.0 * x.sigmoid()) * torch.linspace(1, 2, 5) + torch.arange(float(wide)).view(1, 1, 1, wide, 1)
        return y.reshape(batch, -1, 5), x


def answer(tmp_path, reference, port, x):
    for net in (reference, port):
        net.eval()
    with torch.no_grad(), aligner.capture(reference, tmp_path / "ref.h5"):
        reference(x)
    replay = aligner.replay(tmp_path / "ref.h5", port)
    with torch.no_grad(), replay.capture(tmp_path / "port.h5", Options(force=True)):
        port(*replay.inputs(0))
    return aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")


def test_of_several_wrong_values_the_one_that_tells_is_explained(tmp_path):
    torch.manual_seed(0)
    reference = Head()
    port = copy.deepcopy(reference)
    port.turned = False
    (origin,) = answer(tmp_path, reference, port, torch.randn(2, 4, 6, 7)).origins
    assert origin.where == "glue"
    assert origin.place.key.slot == "output.0", "the worst value is the decoded one"
    assert origin.edit.hunks[0].after.count(".permute(0, 1, 3, 4, 2)") == 2, "what decides is another matter"


class Steps(nn.Module):
    """Time steps as sines and cosines; the two spellings of the frequencies are apart by their last bits."""

    def __init__(self, power=False, divisor=16, sines_first=False):
        super().__init__()
        self.power, self.divisor, self.sines_first = power, divisor, sines_first
        self.first, self.second = nn.Linear(32, 8), nn.Linear(8, 4)

    def forward(self, steps):
        places = torch.arange(16).float() / self.divisor
        frequencies = 1 / 10000.0**places if self.power else torch.exp(-9.210340371976184 * places)
        angles = steps[:, None].float() * frequencies * (1 + 1e-7 * self.power)
        waves = [angles.sin(), angles.cos()]
        return self.second(self.first(torch.cat(waves if self.sines_first else waves[::-1], -1)).relu())


STEPS = torch.tensor([3, 250, 600, 901])


def stepped(tmp_path, **port):
    torch.manual_seed(0)
    reference, other = Steps(), Steps(**port)
    other.load_state_dict(reference.state_dict())
    return answer(tmp_path, reference, other, STEPS)


def test_the_last_bits_of_large_angles_are_no_mistake(tmp_path):
    found = stepped(tmp_path, power=True)
    assert found.aligned
    assert not found.origins
    assert not found.suspects


def test_other_frequencies_are_one(tmp_path):
    (origin,) = stepped(tmp_path, divisor=15).origins
    assert (origin.where, origin.place.key.slot) == ("glue", "input.0")
