"""Layers that were right answer where a forced pass runs once more."""

from __future__ import annotations

from pathlib import Path

import pytest

import aligner
from aligner.compare.layers import pair_layers
from aligner.compare.net import survey
from aligner.dump.reader import open_dump
from aligner.replay.forced import ForcedPass
from aligner.replay.planning import planned

torch = pytest.importorskip("torch")
TorchAdapter = pytest.importorskip("aligner_hooks.torch_").TorchAdapter


def test_only_what_was_wrong_is_computed_in_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 4), torch.nn.Linear(4, 3))
    net.eval()
    given = torch.randn(2, 6)
    files = [str(tmp_path / name) for name in ("reference.h5", "port.h5")]
    for file in files:
        with torch.no_grad(), aligner.capture(net, file):
            net(given)
        with torch.no_grad():
            net[2].weight[0] += 1.0
    linear = torch.nn.functional.linear
    widths: list[int] = []

    def counted(x, weight, bias=None):  # type: ignore[no-untyped-def]  # torch's own
        widths.append(weight.shape[0])
        return linear(x, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", counted)
    with open_dump(files[0]) as reference, open_dump(files[1]) as port:
        nets = survey(reference), survey(port)
        forced = ForcedPass(TorchAdapter(), net, planned(reference, port, pair_layers(*nets), nets[1].inner))
        found = []
        for _ in range(2):
            del forced.checks[:]
            with torch.no_grad():
                forced.run(0, lambda: net(given))
            found.append(list(forced.checks))
    assert widths == [5, 4, 3, 4]
    assert found[0] == found[1]
    assert {check.key.layer for check in found[1] if check.fails} == {"2"}
    assert all("forward" not in vars(layer) for layer in net)
