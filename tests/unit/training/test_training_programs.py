"""What a program makes by itself of parameters and buffers between two steps: a moving average, a queue, a bound."""

from __future__ import annotations

import pytest

import aligner
from aligner import registry
from aligner.capture.options import Options
from aligner.capture.session import Capture

torch = pytest.importorskip("torch", reason="the trainings are torch's")

STEPS = 4


class Net(torch.nn.Module):
    """A student, its moving average, and a queue of what that has made."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.student, self.teacher = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4)
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        self.register_buffer("queue", torch.randn(8, 4))

    def forward(self, x):
        return self.student(x) @ torch.cat([self.teacher(x), self.queue]).T


def averaged(factor):
    def change(net, x):
        with torch.no_grad():
            for one, other in zip(net.student.parameters(), net.teacher.parameters()):
                other.mul_(factor).add_(one, alpha=1 - factor)

    return change


def queued(net, x):
    with torch.no_grad():
        net.queue = torch.cat([net.queue[2:], net.teacher(x[:2])])


def queued_in_front(net, x):
    with torch.no_grad():
        net.queue = torch.cat([net.teacher(x[:2]), net.queue[:-2]])


def cut(limit):
    def change(net, x):
        with torch.no_grad():
            for one in net.student.parameters():
                one.clamp_(-limit, limit)

    return change


RIGHT = averaged(0.9), queued, cut(0.3)


def trained(path, changes, reference=None):
    net = Net().train()
    optimizer = torch.optim.SGD([*net.student.parameters()], 0.05)
    options = Options(gradients=True, force=True, search=0.0)
    if reference is None:
        capture = Capture(registry.of(net), net, path, options)
    else:
        capture = aligner.replay(reference, net).capture(path, options)
        net.train()
    torch.manual_seed(1)
    with capture:
        for _ in range(STEPS):
            x = torch.randn(5, 6)
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            for change in changes:
                change(net, x)


@pytest.fixture
def compared(tmp_path):
    def call(reference, port):
        trained(tmp_path / "ref.h5", reference)
        trained(tmp_path / "port.h5", port, tmp_path / "ref.h5")
        return aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")

    return call


def test_each_step_begins_with_what_the_program_has_made(compared):
    found = compared(RIGHT, RIGHT)
    assert (found.outcome, found.origins, found.suspects) == ("aligned", (), ())
    assert not [name for name, _ in found.warnings if name.startswith("weights-moved")]


@pytest.mark.parametrize(
    ("port", "cause", "parameters"),
    [
        ((averaged(0.99), queued, cut(0.3)), "moving-average-factor", "teacher.weight, teacher.bias"),
        ((queued, cut(0.3)), "program-changes-missing", "teacher.weight, teacher.bias"),
        ((averaged(0.9), queued_in_front, cut(0.3)), "program-changes-otherwise", "net.queue"),
        ((averaged(0.9), cut(0.3)), "program-changes-missing", "net.queue"),
        ((averaged(0.9), queued, cut(0.2)), "program-changes-otherwise", "student.weight, student.bias"),
        ((averaged(0.9), queued), "program-changes-missing", "student.weight, student.bias"),
    ],
    ids=["another factor", "no average", "another end", "no queue", "another bound", "no bound"],
)
def test_what_it_makes_otherwise_is_named_alone(compared, port, cause, parameters):
    """It is made of what the reference's update has left, and the step behind begins with what the reference has."""
    (origin,) = compared(RIGHT, port).origins
    assert (origin.where, origin.phase, origin.step) == ("program", "update", 0)
    assert (origin.causes[0].id, origin.causes[0].facts["parameters"]) == (cause, parameters)


def test_an_average_is_told_with_both_factors(compared):
    (origin,) = compared(RIGHT, (averaged(0.99), queued, cut(0.3))).origins
    told = origin.causes[0].facts
    assert (told["reference"], told["port"], told["of"]) == ("0.9", "0.99", "student.weight")


@pytest.mark.parametrize("more", [cut(0.2), averaged(0.5)])
def test_what_it_does_though_the_reference_does_not(compared, more):
    (origin,) = compared((queued,), (queued, more)).origins
    assert (origin.where, origin.causes[0].id) == ("program", "program-changes-alone")
