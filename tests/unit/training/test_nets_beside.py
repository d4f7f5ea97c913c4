"""Nets that are trained beside each other: captured as one, each update a step, by any names and in any order."""

from __future__ import annotations

import pytest

import aligner
from aligner.capture.numbers import Turns
from aligner.dump.reader import open_dump
from aligner.errors import ReplayError

torch = pytest.importorskip("torch", reason="the trainings are torch's")

ROUNDS = 3


class Maker(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.norm, self.out = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 5)

    def forward(self, z):
        return torch.tanh(self.out(torch.relu(self.norm(self.fc(z)))))


class Judge(torch.nn.Module):
    def __init__(self, slope=0.2):
        super().__init__()
        torch.manual_seed(1)
        self.fc, self.act, self.out = torch.nn.Linear(5, 6), torch.nn.LeakyReLU(slope), torch.nn.Linear(6, 1)

    def forward(self, x):
        return self.out(self.act(self.fc(x)))


def wanted(scores, value):
    return torch.nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, value))


def adversarial(
    maker, judge, rate=0.01, real=0.9, cut=False, apart=False, again=True, sigmoid=False, noise=2, clip="", first="real"
):
    """Rounds of two updates; with `apart` each loss is differentiated by itself, without `again` the second update is
    of what was made for the first."""
    optimizers = torch.optim.Adam(judge.parameters(), 0.02), torch.optim.Adam(maker.parameters(), rate)
    numbers, data = torch.Generator().manual_seed(noise), torch.Generator().manual_seed(3)
    for _ in range(ROUNDS):
        z, x = torch.randn(7, 4, generator=numbers), torch.randn(7, 5, generator=data)
        optimizers[0].zero_grad()
        made = maker(z) if first == "fake" else None
        guess = None if made is None else judge(made.detach())
        score = judge(x)
        losses = [wanted(torch.sigmoid(score) if sigmoid else score, real)]
        if apart:
            losses[0].backward()
        fake = maker(z) if made is None else made
        losses.append(wanted(judge(fake.detach()) if guess is None else guess, 0.0))
        (losses[1] if apart else sum(losses)).backward()
        for some in {"": (), "all": ([*judge.parameters()],), "each": judge.parameters()}[clip]:
            torch.nn.utils.clip_grad_norm_(some, 0.01)
        optimizers[0].step()
        optimizers[1].zero_grad()
        fake = maker(z) if again else fake
        wanted(judge(fake.detach() if cut else fake), 1.0).backward()
        optimizers[1].step()


@pytest.fixture
def compared(tmp_path):
    """What is found of a port that is trained so, against a reference that is trained so."""

    def call(port=None, reference=None, names=("maker", "judge"), judge=None, steps=None):
        nets = {"maker": Maker(), "judge": Judge()}
        with aligner.capture(nets, tmp_path / "ref.h5", gradients=True, force=True):
            adversarial(*nets.values(), **reference or {})
        nets = dict(zip(names, (Maker(), judge or Judge())))
        with aligner.replay(tmp_path / "ref.h5", dict(reversed([*nets.items()]))) as replay:
            for net in nets.values():
                net.train()
            with replay.capture(tmp_path / "port.h5", gradients=True, force=True):
                adversarial(*nets.values(), **port or {})
        return aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")

    return call


def origins(found):
    return [(o.where, o.layer, [*o.steps]) for o in found.origins]


@pytest.mark.parametrize("names", [("maker", "judge"), ("generator", "critic"), ("judge", "maker")])
def test_a_right_training_of_two_nets_is_aligned(compared, names):
    """Also where the port calls its nets otherwise: their parameters tell which are which."""
    found = compared(names=names)
    assert (found.outcome, found.origins, found.suspects) == ("aligned", (), ())
    assert [row.step for row in found.steps] == [*range(2 * ROUNDS)]
    assert {pair.key.layer.partition(".")[0] for pair in found.verdicts} == {"", "(loss)", "maker", "judge"}


def test_calls_that_are_exchanged_are_known_by_what_they_are_given(compared):
    found = compared({"first": "fake"})
    assert (found.outcome, found.origins) == ("aligned", ())
    (origin,) = compared({"first": "fake", "real": 1.0}).origins
    assert (origin.where, origin.causes[0].id, origin.causes[0].confirmed) == ("loss", "loss-binary-target", True)


@pytest.mark.parametrize(
    ("port", "where", "layer", "cause"),
    [
        ({"rate": 0.02}, "update", "maker.fc", "optimizer-learning-rate"),
        ({"cut": True}, "update", "maker.fc", "gradient-cut"),
        ({"noise": 5}, "data", "", ""),
    ],
)
def test_what_is_wrong_in_the_second_net_is_named(compared, port, where, layer, cause):
    found = compared(port)
    assert {(o.where, o.layer) for o in found.origins} == {(where, layer)}
    assert all(step % 2 or where == "data" for o in found.origins for step in o.steps)
    assert not cause or found.origins[0].causes[0].id == cause


def test_a_layer_of_one_net_is_wrong_and_the_gradient_it_hands_to_the_other_comes_of_it(compared):
    found = compared(judge=Judge(0.3))
    assert {(o.where, o.layer) for o in found.origins} == {("layer", "judge.act")}
    assert found.origins[0].causes[0].confirmed


def test_the_gradients_of_one_net_are_clipped_otherwise(compared):
    """The other one's are left as they are: each optimizer's are looked at by themselves."""
    (origin,) = compared({"clip": "each"}, {"clip": "all"}).origins
    assert (origin.where, origin.layer, [*origin.steps]) == ("clip", "judge.fc", [0, 2, 4])
    assert (origin.causes[0].id, origin.causes[0].confirmed) == ("clip-per-tensor-vs-global", True)


def test_losses_that_are_differentiated_one_by_one_are_their_sum(compared):
    """Their gradients are added up, and what the port makes at once is held to that."""
    found = compared(reference={"apart": True})
    assert (found.outcome, found.origins) == ("aligned", ())
    assert [row.loss[0] == pytest.approx(row.loss[1]) for row in found.steps] == [True] * 2 * ROUNDS
    found = compared({"real": 1.0}, {"apart": True})
    assert {(o.where, o.layer) for o in found.origins} == {("loss", "(loss)")}
    assert not [cause for o in found.origins for cause in o.causes if cause.confirmed and o.where != "loss"]


def test_a_net_that_is_called_once_more_moves_its_statistics(compared):
    (origin,) = compared({"again": True}, {"again": False}).origins
    assert (origin.where, origin.layer, [*origin.steps]) == ("layer", "maker.norm", [1, 3, 5])
    assert (origin.causes[0].id, origin.causes[0].facts["port_value"]) == ("statistics-other-runs", 1)


def test_calls_have_the_numbers_of_the_references(tmp_path):
    nets = {"maker": Maker(), "judge": Judge()}
    with aligner.capture(nets, tmp_path / "ref.h5", gradients=True):
        adversarial(*nets.values(), again=False)
    with open_dump(tmp_path / "ref.h5") as reference:
        turns = Turns(reference, {})
    assert [turns.take(0, net) for net in ("maker", "judge", "judge")] == [1, 0, 2]
    assert [turns.take(1, net) for net in ("maker", "judge", "maker")] == [1, 0, 2]


def test_one_net_is_not_several(tmp_path):
    nets = {"maker": Maker(), "judge": Judge()}
    with aligner.capture(nets, tmp_path / "two.h5"):
        nets["judge"](nets["maker"](torch.ones(2, 4)))
    with pytest.raises(ReplayError, match="maker, judge"):
        aligner.replay(tmp_path / "two.h5", Maker())
    with aligner.capture(nets["maker"], tmp_path / "one.h5"):
        nets["maker"](torch.ones(2, 4))
    with pytest.raises(ReplayError, match="holds one net"):
        aligner.replay(tmp_path / "one.h5", nets)
