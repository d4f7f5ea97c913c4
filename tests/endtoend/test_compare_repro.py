"""`aligner compare --repro`: programs that show a wrong layer by itself, without the net and without aligner."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

pytest.importorskip("torch", reason="the references are torch nets")

NET = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1)

        def forward(self, x):
            return self.up(self.down(x))

    def build():
        torch.manual_seed(0)
        return Net(), torch.randn(2, 3, 16, 16)
"""
PORT = """
    from mindspore import nn

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.down = nn.Conv2d(3, 8, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
            self.up = nn.Conv2dTranspose(
                8, 4, 3, stride=2, pad_mode="pad", padding=1, output_padding=1, has_bias=True
            )

        def construct(self, x):
            return self.up(self.down(x))

    def build():
        return Net()
"""
OWN = """
    import torch
    from torch import nn

    class Bend(nn.Module):
        def forward(self, x, *, by):
            return BEND

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 5)
            self.bend = Bend()

        def forward(self, x):
            return self.bend(self.fc(x), by=0.5)

    def build():
        torch.manual_seed(0)
        return Net(), torch.randn(7, 6)
"""
RIGHT, WRONG = "x + by * torch.sin(x)", "x + by * torch.sin(x) + 0.02 * torch.sin(37 * x) * torch.cos(x * x)"


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")


def capture(warm):
    for arguments in (("net.py:build", "-o", "ref.h5"), ("port.py:build", "--from", "ref.h5", "-o", "port.h5")):
        done = warm("capture", *arguments)
        assert done.returncode == 0, done.stderr


def run(script, folder):
    """Run a program from elsewhere, as whoever gets it does; aligner is not asked for."""
    text = script.read_text()
    assert "import aligner" not in text
    command = [sys.executable, "-P", str(script)] if sys.version_info >= (3, 11) else [sys.executable, str(script)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def test_rows_that_mindspore_leaves_empty(warm, tmp_path):
    """A faithful port that MindSpore computes otherwise on a CPU: the program is what a bug report needs."""
    pytest.importorskip("mindspore", reason="the port is a MindSpore net")
    write(tmp_path, net=NET, port=PORT)
    capture(warm)
    done = warm("compare", "ref.h5", "port.h5", "--repro", "repro")
    assert done.returncode == 1
    assert "origin     up (ConvTranspose2d)" in done.stdout
    assert "up by itself" in done.stderr
    (script,) = (tmp_path / "repro").glob("*.py")
    assert script.name == "up.repro.py"
    shown = run(script, "/")
    assert shown.returncode == 1, shown.stdout + shown.stderr
    assert shown.stdout.startswith("output.0: max abs ")
    assert "15]: reference" in shown.stdout
    # A layer that is right was not looked at so closely: how it is built must be filled in.
    done = warm("compare", "ref.h5", "port.h5", "--repro", "repro", "--repro-layer", "down", "--json")
    assert json.loads(done.stdout)["outcome"] == "diverged"
    assert "must be filled in first" in done.stderr
    right = tmp_path / "repro" / "down.repro.py"
    built = "layer = nn.Conv2d(3, 8, 3, stride=2, pad_mode='pad', padding=1, has_bias=True)"
    right.write_text(right.read_text().replace("layer = None", built))
    shown = run(right, "/")
    assert (shown.returncode, shown.stdout.count("output.0: max abs")) == (0, 1), shown.stdout + shown.stderr


def test_a_class_of_ones_own_is_filled_in(warm, tmp_path):
    """No setting differs and no known mistake fits: the report ends with the command that writes the program."""
    write(tmp_path, net=OWN.replace("BEND", RIGHT), port=OWN.replace("BEND", WRONG))
    capture(warm)
    told = warm("compare", "ref.h5", "port.h5")
    assert told.returncode == 1
    assert "origin     bend (Bend)" in told.stdout
    (command,) = [row for row in told.stdout.splitlines() if row.startswith("repro: aligner ")]
    done = warm(*command.split()[2:])
    assert done.returncode == 1
    assert "how it is built must be filled in first" in done.stderr
    script = tmp_path / "repro" / "bend.repro.py"
    assert run(script, tmp_path).returncode == 2
    text = script.read_text()
    assert "result = layer(torch.from_numpy(data['input.0']), by=0.5)" in text
    script.write_text(
        text.replace("layer = None", f"sys.path.insert(0, {str(tmp_path)!r})\nfrom port import Bend\nlayer = Bend()")
    )
    shown = run(script, "/")
    assert shown.returncode == 1, shown.stderr
    with np.load(script.with_suffix(".npz")) as data:
        x = data["input.0"]
        apart = np.abs(0.02 * np.sin(37 * x) * np.cos(x * x)).max()
        assert f"max abs {apart:.1e}" in shown.stdout
        assert np.allclose(data["expected.output.0"], x + 0.5 * np.sin(x), atol=1e-6)
    again = warm(*command.split()[2:])
    assert again.returncode == 2
    assert "there already" in again.stderr


def test_what_cannot_be_asked_for(warm, tmp_path):
    write(tmp_path, net=OWN.replace("BEND", RIGHT), port=OWN.replace("BEND", RIGHT))
    capture(warm)
    clean = warm("compare", "ref.h5", "port.h5", "--repro", "repro")
    assert clean.returncode == 0
    assert "nothing is written" in clean.stderr
    assert "repro:" not in clean.stdout
    unknown = warm("compare", "ref.h5", "port.h5", "--repro", "repro", "--repro-layer", "bent")
    assert unknown.returncode == 2
    assert "Did you mean bend" in unknown.stderr
    alone = warm("compare", "ref.h5", "port.h5", "--repro-layer", "bend")
    assert alone.returncode == 2
    assert "--repro FOLDER" in alone.stderr
