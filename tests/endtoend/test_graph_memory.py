"""A capture of a compiled net needs the memory of a few of its values, however many it records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")

LAYERS = 24
TENSOR = 16 << 20
CHILD = """
import resource, sys
import mindspore as ms
from mindspore import nn
import aligner

class Add(nn.Cell):
    def construct(self, x):
        return x + 1

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

layers, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
ms.set_context(mode=ms.GRAPH_MODE)
small, net = (nn.SequentialCell([Add() for _ in range(layers)]) for _ in range(2))
with aligner.capture(small, folder + "/small.h5"):
    small(ms.ops.zeros(4)).asnumpy()
x = ms.ops.zeros(size // 4)
net(x).asnumpy()
before = peak()
with aligner.capture(net, folder + "/large.h5"):
    net(x).asnumpy()
print(peak() - before)
"""


def test_memory_does_not_grow_with_what_is_recorded(tmp_path: Path) -> None:
    script = tmp_path / "deep.py"
    script.write_text(CHILD)
    words = [sys.executable, str(script), str(LAYERS), str(TENSOR), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < 4 * TENSOR  # with copies it is 2 * LAYERS of them
