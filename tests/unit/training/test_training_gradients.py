"""Gradients that are another where all values agree: cut off on one side, or with a branch more."""

from __future__ import annotations

import pytest

import aligner
from aligner import registry
from aligner.capture.options import Options
from aligner.capture.session import Capture

torch = pytest.importorskip("torch", reason="the trainings are torch's")


class Net(torch.nn.Module):
    """A table, and two branches; `way` says what is done to the gradients."""

    def __init__(self, way=""):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(9, 6, padding_idx=None if way == "trained padding" else 0)
        self.body, self.one, self.two = (torch.nn.Linear(6, 6) for _ in range(3))
        self.norm, self.way = torch.nn.LayerNorm(6), way
        with torch.no_grad():
            self.words.weight[0] = 0.0

    def forward(self, ids):
        body = self.norm(self.body(self.words(ids)))
        if self.way == "cut":
            body = body.detach()
        if self.way == "halved":
            body = 0.5 * body + 0.5 * body.detach()
        if self.way == "by parts":
            body = torch.where(body > 0, body, body.detach())
        one, two = self.one(body), self.two(body.detach() if self.way == "a branch" else body)
        return torch.cat([one, two], -1)


def trained(path, way, reference=None):
    net = Net(way).train()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    options = Options(gradients=True, force=True, search=0.0)
    if reference is None:
        capture = Capture(registry.of(net), net, path, options)
    else:
        capture = aligner.replay(reference, net).capture(path, options)
        net.train()
    torch.manual_seed(1)
    with capture:
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.randint(0, 9, (4, 5))).square().mean().backward()
            optimizer.step()


CASES = [
    ("", "cut", "gradient-cut", {}),
    ("cut", "", "gradient-not-cut", {}),
    ("", "halved", "gradient-times", {"factor": "0.5"}),
    ("", "by parts", "gradient-path-differs", {}),
    ("", "a branch", "gradient-branch-cut", {"branch": "two"}),
    ("a branch", "", "gradient-branch-not-cut", {"branch": "two"}),
    ("", "trained padding", "gradient-rows-not-left-out", {"rows": "0", "layer": "words"}),
]


@pytest.mark.parametrize(("reference", "port", "cause", "facts"), CASES)
def test_what_comes_back_is_told_from_both_gradients(tmp_path, reference, port, cause, facts):
    trained(tmp_path / "ref.h5", reference)
    trained(tmp_path / "port.h5", port, tmp_path / "ref.h5")
    found = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")
    assert found.origins[0].phase == ("update" if "cut" in (reference, port) else "backward")
    told = {one.id: one for one in found.origins[0].causes}
    assert list(told) == [cause]
    assert len(found.origins) == 1
    assert (told[cause].confirmed, told[cause].facts["words"]) == (False, "torch")
    assert {name: told[cause].facts[name] for name in facts} == facts
