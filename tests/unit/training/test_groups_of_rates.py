"""A rate of its own for each of many groups, all of them wrong by one mistake: one trial undoes it in all."""

from __future__ import annotations

import pytest

import aligner

torch = pytest.importorskip("torch", reason="the trainings are torch's")

GROUPS = 5


def trained(path, factor, reference=None):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(GROUPS)))
    groups = [{"params": layer.parameters(), "lr": factor * 0.5**n} for n, layer in enumerate(net)]
    optimizer = torch.optim.SGD(groups)
    if reference is None:
        capture = aligner.capture(net, path, gradients=True)
    else:
        capture = aligner.replay(reference, net).capture(path, gradients=True)
        net.train()
    with capture:
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize(("factor", "count"), [(0.1, 0), (0.2, 5)])
def test_all_groups_are_undone_together(tmp_path, factor, count):
    trained(tmp_path / "ref.h5", 0.1)
    trained(tmp_path / "port.h5", factor, tmp_path / "ref.h5")
    found = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")
    causes = [cause for origin in found.origins for cause in origin.causes]
    assert [(cause.id, cause.confirmed) for cause in causes] == [("optimizer-learning-rate", True)] * count
