"""MindSpore's own dumps, written by a real run in GRAPH_MODE, imported and compared with torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("mindspore")

SAMPLES = Path(__file__).resolve().parents[2] / "samples"

RUN = """
import sys
import mindspore as ms
import aligner

ms.set_context(mode=ms.GRAPH_MODE)
sys.path.insert(0, sys.argv[2])
port = __import__(sys.argv[3])
net = port.build()
replay = aligner.replay(sys.argv[1], net)
for step in replay.steps:
    args, kwargs = replay.arguments(step)
    net(*args, **kwargs)
"""


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """The reference's dump of each sample, made once."""
    folder = tmp_path_factory.mktemp("references")

    def dump(sample):
        path = folder / f"{sample}.h5"
        if not path.exists():
            command = [sys.executable, "-m", "aligner", "capture", "reference.py:build", "-o", str(path), "-q"]
            subprocess.run(command, cwd=SAMPLES / sample, check=True, timeout=280)
        return path

    return dump


def dumped(aligner, tmp_path, reference, sample, port):
    """What MindSpore writes while the port runs on the reference's weights and inputs."""
    folder = tmp_path / "ms"
    assert aligner("import", "--config", folder).returncode == 0
    environ = {**os.environ, "MINDSPORE_DUMP_CONFIG": str(folder / "config.json"), "GLOG_v": "4"}
    command = [sys.executable, "-c", RUN, str(reference), str(SAMPLES / sample), port]
    subprocess.run(command, cwd=tmp_path, env=environ, check=True, timeout=280, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("sample", "port", "origin", "where", "cause"),
    [
        ("lenet_bn", "port_bn_eps", "bn1", "layer", "bn-eps-dropped"),
        ("transformer", "port_mask_inverted", "", "glue", None),
    ],
)
def test_the_planted_mistake_is_the_first_divergence(aligner, tmp_path, references, sample, port, origin, where, cause):
    reference = references(sample)
    folder = dumped(aligner, tmp_path, reference, sample, port)
    done = aligner("import", folder, "-o", "port.h5")
    assert done.returncode == 0, done.stderr
    found = json.loads(aligner("compare", reference, "port.h5", "--json").stdout)
    assert found["outcome"] == "diverged"
    assert (found["origins"][0]["layer"], found["origins"][0]["where"]) == (origin, where)
    causes = found["origins"][0]["causes"]
    assert cause is None or cause in [c["id"] for c in causes]
    assert not any(c["confirmed"] for c in causes), "nothing was run"


def test_a_clean_port_is_aligned_with_the_settings_of_its_net(aligner, tmp_path, references):
    """The U-net shares compiled code among its blocks, and passes values round them."""
    reference = references("unet")
    folder = dumped(aligner, tmp_path, reference, "unet", "port")
    done = aligner("import", folder, "-o", "port.h5", "--net", f"{SAMPLES / 'unet' / 'port.py'}:build")
    assert done.returncode == 0, done.stderr
    compared = aligner("compare", reference, "port.h5", "--json")
    found = json.loads(compared.stdout)
    assert compared.returncode == 0, found["first_divergence"]
    assert not found["origins"]
    assert found["counts"]["aligned"] > 130
    shown = aligner("show", "port.h5", "down1.act").stdout
    assert "negative_slope" in shown


def test_a_net_of_another_framework_is_none(aligner, tmp_path):
    (tmp_path / "ms").mkdir()
    done = aligner("import", "ms", "-o", "port.h5", "--net", f"{SAMPLES / 'unet' / 'reference.py'}:build")
    assert done.returncode == 2
    assert "a net of torch" in done.stderr
