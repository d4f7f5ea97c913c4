"""Classes that MindSpore writes anew, for level O1: what it loses on the way is said to be lost there."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("mindspore")

from aligner import cli  # only after it is known to be there

NET = """
    import mindspore as ms
    import numpy as np
    from mindspore import nn

    WIDTH = 8


    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.fc = nn.Dense(8, 8)
            self.width = WIDTH

        def construct(self, x):
            return self.fc(x).reshape(-1, {width})


    def build():
        return ms.amp.auto_mixed_precision(Net(), "O1"), ms.Tensor(np.ones((2, 8), np.float32))
"""


def captured(folder, monkeypatch, capsys, width, name):
    monkeypatch.chdir(folder)  # MindSpore writes what it has made of the source
    net = folder / f"{name}.py"  # two files of one name cannot be rewritten in one process
    net.write_text(textwrap.dedent(NET.format(width=width)), encoding="utf-8")
    code = cli.main(["capture", f"{net}:build", "-o", str(folder / "port.h5")])
    return code, " ".join(capsys.readouterr().err.split())


def test_a_constant_beside_the_class_is_named_with_what_to_do(tmp_path, monkeypatch, capsys):
    code, said = captured(tmp_path, monkeypatch, capsys, "WIDTH", "net_with_constant")
    assert code != 0
    assert "NameError: name 'WIDTH' is not defined" in said
    assert "keep it in the cell: self.WIDTH = WIDTH in __init__" in said


def test_kept_in_the_cell_it_runs(tmp_path, monkeypatch, capsys):
    code, said = captured(tmp_path, monkeypatch, capsys, "self.width", "net_with_attribute")
    assert (code, "anew" in said) == (0, False)
