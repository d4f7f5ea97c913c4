"""Loops that change the weights while a net is captured: no layer is blamed for weights that are not in the dump."""

from __future__ import annotations

import numpy as np
import pytest

import aligner
from aligner.compare.moved import moved
from aligner.dump.reader import open_dump
from aligner.report.answer import answer

torch = pytest.importorskip("torch", reason="half of the loops are torch's")


def batches(steps=3, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((4, 3, 8, 8)).astype(np.float32) for _ in range(steps)]


class Net(torch.nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 4, 3)
        self.bn = torch.nn.BatchNorm2d(4, eps=eps)
        self.fc = torch.nn.Linear(144, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.bn(self.conv1(x))).flatten(1))


def net(seed=0, **options):
    torch.manual_seed(seed)
    return Net(**options).train()


def trained(model, rate, optimizer=torch.optim.SGD, only=None, data=None):
    """A user's loop."""
    updates = optimizer((only or model).parameters(), rate)
    for x in data or batches():
        updates.zero_grad()
        model(torch.from_numpy(x)).square().mean().backward()
        updates.step()


def captured(path, run, model):
    with aligner.capture(model, path, force=True):
        run(model)
    return path


def changed(path):
    """From which step on, and which layers."""
    with open_dump(path) as dump:
        found = moved(dump)
    return found.steps, list(found.layers)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_wrong_learning_rate_blames_no_layer(folder, optimizer):
    captured("ref.h5", lambda model: trained(model, 0.01, optimizer), net())
    captured("same.h5", lambda model: trained(model, 0.01, optimizer), net())
    captured("wrong.h5", lambda model: trained(model, 0.1, optimizer), net())
    assert changed("ref.h5") == ([1, 2], ["conv1", "bn", "fc"])
    assert aligner.compare("ref.h5", "same.h5").exit_code == 0
    assert not aligner.compare("ref.h5", "same.h5").warnings
    found = aligner.compare("ref.h5", "wrong.h5")
    assert (found.exit_code, found.origins, found.suspects) == (1, (), ())
    assert "from step 1 on" in answer(found, "en")
    assert "no layer is judged" in answer(found, "en")
    assert "不据此判断任何层" in answer(found, "zh")
    assert [message for message, _ in found.warnings] == ["weights-moved"]
    assert all(verdict.outcome.value == "aligned" for verdict in found.pairs if verdict.key.step == 0)


def test_a_bug_before_the_first_update_is_found_as_ever(folder):
    captured("ref.h5", lambda model: trained(model, 0.01), net())
    captured("port.h5", lambda model: trained(model, 0.01), net(eps=0.5))
    found = aligner.compare("ref.h5", "port.h5")
    assert [(origin.layer, origin.step) for origin in found.origins] == [("bn", 0)]
    assert answer(found, "en").startswith("first layer over 1e-03: bn")
    assert "from step 1 on no layer is judged" in answer(found, "en")


def test_a_replayed_port_that_trains_is_forced_on_the_weights_it_was_given(folder):
    captured("ref.h5", lambda model: trained(model, 0.01), net())
    for rate, eps, origins in ((0.01, 1e-5, []), (0.1, 1e-5, []), (0.01, 0.5, ["bn"])):
        replay = aligner.replay("ref.h5", net(seed=9, eps=eps))
        with replay.capture("port.h5", force=True):
            trained(replay.model, rate)
            ended = replay.model.conv1.weight.detach().clone()
        assert torch.equal(replay.model.conv1.weight, ended)  # the forced pass put the trained weights back
        found = aligner.compare("ref.h5", "port.h5")
        assert found.checked
        assert [origin.layer for origin in found.origins] == origins
        assert found.exit_code == (0 if rate == 0.01 and not origins else 1)


def test_a_port_from_a_reference_that_trained_runs_the_steps_it_has_weights_for(folder, warm):
    captured("ref.h5", lambda model: trained(model, 0.01), net())
    (folder / "port.py").write_text(f"""
import sys; sys.path.insert(0, {str(__file__.rpartition("/tests/")[0])!r})
from tests.endtoend.test_training_loops import net
def build(): return net(seed=9)
def wrong(): return net(seed=9, eps=0.5)
""")
    made = warm("capture", "port.py:build", "--from", "ref.h5", "-o", "port.h5")
    assert "2 steps of ref.h5 are left out, from step 1 on" in made.stderr
    found = aligner.compare("ref.h5", "port.h5")
    assert found.exit_code == 0
    assert found.checked
    assert "2 steps not compared" in answer(found, "en")
    warm("capture", "port.py:wrong", "--from", "ref.h5", "-o", "wrong.h5")
    assert [origin.layer for origin in aligner.compare("ref.h5", "wrong.h5").origins] == ["bn"]


def test_weights_that_moved_on_one_side_alone_cannot_be_set_side_by_side(folder):
    def forward(model):
        for x in batches():
            model(torch.from_numpy(x))

    captured("still.h5", forward, net())
    captured("moved.h5", lambda model: trained(model, 0.1), net())
    for pair, side in ((("still.h5", "moved.h5"), "port"), (("moved.h5", "still.h5"), "reference")):
        found = aligner.compare(*pair)
        assert (found.exit_code, found.origins) == (3, ())
        assert f"weights-moved-{side}" in dict(found.warnings)
        assert f"the {side}'s weights were changed" in answer(found, "en")


def test_train_mode_without_updates_is_judged_to_the_end(folder):
    """Running statistics are a layer's own: it is the layer that is wrong if they are."""

    def forward(model):
        for number, x in enumerate(batches(4)):
            model.train(number < 2)
            model(torch.from_numpy(x))

    def wrong():
        made = net()
        made.bn.momentum = 0.5
        return made

    captured("ref.h5", forward, net())
    captured("port.h5", forward, wrong())
    assert changed("ref.h5") == ([], [])
    found = aligner.compare("ref.h5", "port.h5")
    assert [(origin.layer, origin.step) for origin in found.origins] == [("bn", 2)]


def test_a_frozen_trunk_is_judged_in_every_step(folder):
    """What comes before the first layer whose weights have moved."""

    def finetuned(model):
        for parameter in model.conv1.parameters():
            parameter.requires_grad_(False)
        trained(model, 0.1, only=model.fc, data=[x * (n + 1) for n, x in enumerate(batches())])

    class Late(Net):
        def forward(self, x):  # wrong for large values alone, which come late
            return self.fc(torch.relu(self.bn(self.conv1(x).clamp(max=4.0))).flatten(1))

    torch.manual_seed(0)
    late = Late().eval()
    captured("ref.h5", finetuned, net().eval())
    captured("port.h5", finetuned, late)
    assert changed("ref.h5") == ([1, 2], ["fc"])
    found = aligner.compare("ref.h5", "port.h5")
    assert [(origin.where, origin.step >= 1) for origin in found.origins] == [("glue", True)]


def swapped(model):
    """An average of weights is put in for an evaluation, as most programs do it: through `.data`."""
    x = torch.from_numpy(batches()[0])
    model(x)
    kept = {name: value.detach().clone() for name, value in model.named_parameters()}
    for value in model.parameters():
        value.data.mul_(0.9)
    model(x)
    for name, value in model.named_parameters():
        value.data.copy_(kept[name])
    model(x)


def merged(model):
    """A low-rank update is merged into one weight."""
    x = torch.from_numpy(batches()[0])
    model(x)
    model.fc.weight.data += 0.01 * torch.ones(5, 1) @ torch.ones(1, 144)
    model(x)


def loaded(model):
    model.load_state_dict({name: value * 1.01 for name, value in model.state_dict().items()}, assign=True)
    model(torch.from_numpy(batches()[0]))


def handed(model):
    state = {name: value * 1.01 for name, value in model.state_dict().items()}
    torch.func.functional_call(model, state, (torch.from_numpy(batches()[0]),))
    model(torch.from_numpy(batches()[0]))


def one_row(model):
    model(torch.from_numpy(batches()[0]))
    model.fc.weight.data[3, 7] += 1.0
    model(torch.from_numpy(batches()[0]))


def the_same_again(model):
    model(torch.from_numpy(batches()[0]))
    with torch.no_grad():
        model.fc.weight.copy_(model.fc.weight.clone())
    model.load_state_dict(model.state_dict())
    model(torch.from_numpy(batches()[0]))


ALL = ["conv1", "bn", "fc"]


@pytest.mark.parametrize(
    ("way", "steps", "layers"),
    [
        (swapped, [1], ALL),
        (merged, [1], ["fc"]),
        (loaded, [0], ALL),
        (handed, [0], ALL),
        (one_row, [1], ["fc"]),
        (the_same_again, [], []),
    ],
)
def test_whatever_changes_weights_is_seen_for_as_long_as_it_lasts(folder, way, steps, layers):
    captured("a.h5", way, net().eval())
    assert changed("a.h5") == (steps, layers)


def test_no_weights_in_the_dump_and_lazy_ones(folder):
    model = net()
    with aligner.capture(model, "a.h5", weights=False):
        trained(model, 0.1)
    assert changed("a.h5") == ([1, 2], ALL)
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(4))
    with aligner.capture(lazy, "b.h5"):
        for _ in range(2):
            lazy(torch.ones(2, 3))
    assert changed("b.h5") == ([], [])


class Pair(torch.nn.Module):
    """Two nets that train against each other, called one by one and never as a whole."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.make, self.judge = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)


def duel(model, rate):
    makes, judges = (torch.optim.SGD(part.parameters(), rate) for part in (model.make, model.judge))
    for _ in range(2):
        for updates, sign in ((judges, 1.0), (makes, -1.0)):
            updates.zero_grad()
            (sign * model.judge(torch.tanh(model.make(torch.ones(2, 4)))).mean()).backward()
            updates.step()


def test_calls_within_one_step_are_told_apart(folder):
    captured("ref.h5", lambda model: duel(model, 0.1), Pair())
    captured("port.h5", lambda model: duel(model, 0.9), Pair())
    with open_dump("ref.h5") as dump:
        found = moved(dump)
        calls = [(call.layer, call.number) for call in dump.calls if call.first >= found.starts[0]]
    assert calls[0] == ("judge", 1)  # its second call comes after its first update
    found = aligner.compare("ref.h5", "port.h5")
    assert (found.exit_code, found.origins) == (1, ())


def test_two_nets_captured_side_by_side(folder):
    pair = Pair()
    with aligner.capture(pair.make, "make.h5"), aligner.capture(pair.judge, "judge.h5"):
        duel(pair, 0.1)
    assert changed("judge.h5") == ([1, 2, 3], [""])
    assert changed("make.h5") == ([2, 3], [""])
