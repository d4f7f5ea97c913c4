"""One map for capture and compare: written by the tool, corrected by hand, given back."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

torch = pytest.importorskip("torch")

NET = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, names, order, act="act", prefix=""):
            super().__init__()
            for name in order:
                setattr(self, name, nn.Linear(6, 6))
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2))
            setattr(self, act, nn.Sigmoid())
            self.names, self.activation = names, act

        def forward(self, x):
            a, b, c, d = (getattr(self, name) for name in self.names)
            y = getattr(self, self.activation)(a(x)) * b(x) + c(x) / (2 + d(x).abs())
            for layer in self.layers:
                y = layer(y)
            return y

    def build():
        torch.manual_seed(0)
        names = ("gate", "value", "skip", "size")
        return Net(names, names), (torch.randn(4, 6),)

    class Port(Net):
        def __init__(self):
            super().__init__(("zeta", "kappa", "mu", "pi"), ("mu", "pi", "zeta", "kappa"), act="squash")
            self.blocks = self.layers
            del self._modules["layers"]

        def forward(self, x):
            # all four at once: no order of building or running tells who is who, and there are too many to try
            m, p, z, k = (getattr(self, name)(x) for name in ("mu", "pi", "zeta", "kappa"))
            y = self.squash(z) * k + m / (2 + p.abs())
            for block in self.blocks:
                y = block(y)
            return y

    def port():
        return Port()
"""


@pytest.fixture
def folder(tmp_path, warm):
    (tmp_path / "net.py").write_text(dedent(NET))
    assert warm("capture", "net.py:build", "-o", "ref.h5").returncode == 0
    return tmp_path


def test_a_written_map_is_corrected_and_given_back(folder, warm):
    done = warm("capture", "net.py:port", "--from", "ref.h5", "-o", "wrong.h5", "--write-map", "map.txt")
    assert done.returncode == 0, done.stderr
    assert warm("compare", "ref.h5", "wrong.h5").returncode == 1, "crosswise, and the tool cannot know"
    text = (folder / "map.txt").read_text()
    rows = dict(map(str.strip, line.partition("#")[0].split("=")) for line in text.splitlines() if line[:1] != "#")
    assert "by type, shape and order" in text
    assert set(rows) >= {"gate", "value", "skip", "size", "layers.0.0", "layers.1.0"}
    assert rows["layers.1.0"] == "blocks.1.0"
    right = {"gate": "zeta", "value": "kappa", "skip": "mu", "size": "pi"}
    lines = []
    for line in text.splitlines():
        name = line.partition(" =")[0]
        lines.append(f"{name} = {right[name]}" if name in right else line)
    assert sum(one != other for one, other in zip(lines, text.splitlines())) == 4
    (folder / "map.txt").write_text("\n".join(lines) + "\nact = squash\n")
    done = warm("capture", "net.py:port", "--from", "ref.h5", "-o", "right.h5", "--map", "map.txt")
    assert done.returncode == 0, done.stderr
    for more in ((), ("--map", "map.txt")):
        told = warm("compare", "ref.h5", "right.h5", "--json", *more)
        assert told.returncode == 0, told.stdout
        layers = {pair["reference"]: pair for pair in json.loads(told.stdout)["layers"]}
        assert {name: layers[name]["port"] for name in right} == right
        assert (layers["act"]["port"], layers["act"]["by"]) == ("squash", "map"), "no weights, and still in force"


def test_patterns(folder, warm):
    (folder / "map.txt").write_text(
        "gate=zeta\nvalue=kappa  # by hand\nskip.weight=mu.weight\nskip=mu\nsize=pi\nlayers.*=blocks.*\n"
    )
    assert warm("capture", "net.py:port", "--from", "ref.h5", "-o", "p.h5", "--map", "map.txt").returncode == 0
    told = warm("compare", "ref.h5", "p.h5", "--write-map", "used.txt")
    assert told.returncode == 0, told.stdout
    assert "layers.1.0 = blocks.1.0" in (folder / "used.txt").read_text()
    again = warm("compare", "ref.h5", "p.h5", "--map", "used.txt", "--json")
    assert again.returncode == 0
    assert {pair["by"] for pair in json.loads(again.stdout)["layers"]} == {"map"}
    assert warm("capture", "net.py:port", "--from", "ref.h5", "-o", "q.h5", "--map", "used.txt").returncode == 0


def test_what_is_left_over_is_written_too(folder, warm):
    (folder / "small.py").write_text("from torch import nn\ndef port():\n    return nn.Sequential(nn.Linear(6, 6))\n")
    done = warm("capture", "small.py:port", "--from", "ref.h5", "-o", "p.h5", "--write-map", "map.txt")
    assert done.returncode == 2
    assert "# left over in the reference: " in (folder / "map.txt").read_text()
    assert "--map map.txt" in done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gaet = zeta", "(map.txt:2) names 'gaet', which is no layer or parameter of the reference; close ones: gate"),
        ("gate = zetta", "(map.txt:2) names 'zetta', which is no layer or parameter of the port; close ones: zeta"),
        (
            "layer.* = blocks.*",
            "pattern 'layer.*' of the layer map (map.txt:2) fits no layer or parameter of the reference",
        ),
        ("layers.* = block.*", "pattern 'block.*' of the layer map (map.txt:2) fits no layer or parameter of the port"),
        ("layers.*.* = blocks.*", "another number of *"),
        ("gate zeta", "Line 2 of the layer map map.txt is not 'REF = PORT'"),
        ("gate = zeta\nvalue = zeta", "(map.txt:3) gives zeta of the port to value, and it belongs to gate already"),
        ("gate.weight = zeta.bias", "gate.weight is zeta.bias, but their shapes are [6, 6] and [6]"),
    ],
)
def test_wrong_maps(folder, warm, line, said):
    (folder / "map.txt").write_text(f"# mine\n{line}\n")
    done = warm("capture", "net.py:port", "--from", "ref.h5", "-o", "p.h5", "--map", "map.txt")
    assert done.returncode == 2
    assert said in done.stderr
    assert not (folder / "p.h5").exists()
    if "shapes" not in said:
        warm("capture", "net.py:port", "--from", "ref.h5", "-o", "p.h5")
        done = warm("compare", "ref.h5", "p.h5", "--map", "map.txt")
        assert done.returncode == 2
        assert said in done.stderr


def test_a_map_that_was_corrected_is_not_written_over(folder, warm):
    (folder / "map.txt").write_text("gate = zeta\n")
    done = warm(
        "capture", "net.py:port", "--from", "ref.h5", "-o", "p.h5", "--map", "map.txt", "--write-map", "map.txt"
    )
    assert done.returncode == 2
    assert "corrected by hand" in done.stderr
    assert (folder / "map.txt").read_text() == "gate = zeta\n"
    assert warm("capture", "net.py:port", "-o", "p.h5", "--map", "map.txt").returncode == 2, "it needs --from"
