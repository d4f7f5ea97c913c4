"""Nets of MindTorch against torch, from the command line: all three doors, and the bug that mindnlp's BatchNorm has."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("mindtorch") is None:
    pytest.skip("no mindtorch is installed", allow_module_level=True)

HERE = Path(__file__).parent
IS_OPENI = (Path(find_spec("mindtorch").origin).parent / "torch").is_dir()
openi = pytest.mark.skipif(not IS_OPENI, reason="mindnlp's does not run this net, or has no torch beside it")
mindnlp = pytest.mark.skipif(IS_OPENI, reason="OpenI's has no such bug")

SCRIPT = """
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(torch.relu(self.bn(self.conv(x)))), 1))

random = np.random.default_rng(0)
net = Net().eval()
shapes = {name: tuple(value.shape) for name, value in net.state_dict().items() if "batches" not in name}
weights = {name: random.standard_normal(shape).astype(np.float32) ** 2 for name, shape in shapes.items()}
net.load_state_dict({name: torch.tensor(value) for name, value in weights.items()}, strict=False)
print(tuple(net(torch.tensor(random.standard_normal((2, 3, 8, 8)).astype(np.float32))).shape))
"""


def run(*arguments, cwd, wanted=0):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == wanted, done.stdout + done.stderr
    return done


def aligner(*arguments, cwd, wanted=0):
    return run("-m", "aligner", *arguments, cwd=cwd, wanted=wanted)


def reference(name, folder):
    """The dump of the torch net: from the main environment, or made here where torch is."""
    given = Path(os.environ.get("ALIGNER_REFERENCES", folder)) / f"mindtorch_{name}.h5"
    if given.exists():
        return given
    if not IS_OPENI:
        pytest.skip("references come from the main environment: run tests/environments.sh")
    path = folder / f"mindtorch_{name}.h5"
    aligner("capture", "-q", f"{HERE / 'mindtorch_nets.py'}:reference_{name}", "-o", str(path), cwd=folder)
    return path


def compared(name, folder, wanted, *more, port=None):
    """What compare says of the port, captured with `more` arguments, as JSON, once its exit code is right."""
    made = str(reference(name, folder))
    source = f"{HERE / 'mindtorch_nets.py'}:port_{port or name}"
    aligner("capture", "-q", source, "--from", made, "-o", "port.h5", "--force", *more, cwd=folder)
    return json.loads(aligner("compare", "--json", made, "port.h5", cwd=folder, wanted=wanted).stdout)


@pytest.mark.parametrize(
    "name", ["lenet", *(pytest.param(name, marks=openi) for name in ("residual", "encoder", "lstm", "gru"))]
)
def test_a_port_is_aligned_and_was_looked_at_layer_by_layer(name, tmp_path):
    said = compared(name, tmp_path, 0)
    assert said["outcome"] == "aligned"
    assert said["origins"] == []
    assert said["counts"]["aligned"] == len(said["pairs"]) > 10
    assert said["port"]["framework"] == "mindtorch"


@openi
def test_a_setting_is_found_tried_and_confirmed(tmp_path):
    said = compared("residual", tmp_path, 1, port="careless")
    (origin,) = said["origins"]
    assert origin["layer"] == "bn1"
    cause = origin["causes"][0]
    assert cause["confirmed"]
    assert cause["error_after"] < 1e-5 < cause["error_before"]


@openi
def test_the_change_is_told_in_mindtorchs_words(tmp_path):
    """MindSpore writes epsilon=, which MindTorch's LayerNorm does not take."""
    said = compared("encoder", tmp_path, 1, port="other_eps")
    (origin,) = said["origins"]
    assert origin["layer"] == "2"
    cause = origin["causes"][0]
    assert cause["confirmed"]
    assert cause["fix"] == "Write nn.LayerNorm(..., eps=1e-05)"
    assert "MindSpore" not in cause["summary"]


@openi
def test_a_setting_is_found_in_graph_mode(tmp_path):
    said = compared("residual", tmp_path, 1, "--mode", "graph", port="careless")
    assert said["port"]["mode"] == "graph"
    (origin,) = said["origins"]
    assert (origin["layer"], origin["causes"][0]["confirmed"]) == ("bn1", True)
    assert said["counts"]["unmatched"] == 0


def under_amp(name, folder, *cases):
    """What compare says of each case of tests/endtoend/mindtorch_amp.py, all in one process."""
    done = run(str(HERE / "mindtorch_amp.py"), str(reference(name, folder)), name, *cases, cwd=folder)
    return json.loads(done.stdout.splitlines()[-1])


def quiet(said):
    return said["aligned"] and not said["origins"] and not said["suspects"]


LEVELS = ("O0", "wrapped", "O1", "auto", "auto-grad", "to_float", "one")
MISTAKES = ("O2:eps", "auto-grad:eps", "to_float:act")


@pytest.fixture(scope="module")
def residual(tmp_path_factory):
    return under_amp("residual", tmp_path_factory.mktemp("amp"), *LEVELS, *MISTAKES)


@openi
def test_levels_of_mixed_precision_are_looked_through(residual):
    """Rewritten classes, those that are imported once more for a second net, strategies, flags, wrappers."""
    said = {level: residual[level] for level in LEVELS}
    for level, found in said.items():
        if level == "one":  # a layer that alone is cast, by hand
            assert (found["aligned"], found["origins"], found["suspects"]) == (True, [], ["bn2"])
        else:
            assert quiet(found), level
        assert found["model"] == "Residual", level
        assert found["layers"] == {**said["O0"]["layers"], "": found["layers"][""]}, level
        assert found["parameters"] == said["O0"]["parameters"], level
    others = {level: found["amp"] for level, found in said.items() if found["amp"] != level}
    assert others == {"O0": None, "wrapped": "O2", "auto-grad": "auto", "one": "to_float"}
    for level in ("O1", "auto-grad", "wrapped"):
        assert said[level]["casts"]["conv1"] == ["float16", ""]
        assert said[level]["casts"]["bn1"] == ["float32", ""]
    assert said["to_float"]["casts"]["bn1"] == ["float16", "careful"]
    assert said["one"]["casts"] == {"bn2": ["float16", "careful"]}
    assert said["auto"]["casts"] == said["O0"]["casts"] == {}
    assert [level for level, found in said.items() if "mindtorch-auto-idle" in found["notes"]] == ["auto"]


@openi
def test_mistakes_are_found_under_mixed_precision(residual):
    for case in MISTAKES:
        found = residual[case]
        assert not found["aligned"]
        (layer,) = {layer for layer, _ in found["origins"]}
        assert layer == ("relu" if case.endswith("act") else "bn1"), case
        if case.endswith("eps"):
            assert found["origins"][0][1] == [["bn-eps-dropped", True]], case


@openi
def test_a_sequential_that_was_rewritten_runs_what_stands_in_its_list(tmp_path):
    said = under_amp("encoder", tmp_path, "O2", "O1:eps")
    assert quiet(said["O2"])
    assert said["O2"]["casts"]["2"] == ["float16", "careful"]  # MindTorch's list of what stays in float32 is empty
    assert said["O2"]["layers"]["1.linear1"] == "mindtorch.torch.nn.Linear"
    assert said["O1:eps"]["origins"] == [["2", [["layernorm-eps-default", True]]]]


@mindnlp
def test_the_batch_norm_of_mindnlp_is_named_with_a_repro_that_runs_alone(tmp_path):
    said = compared("residual", tmp_path, 1)
    assert {origin["layer"] for origin in said["origins"]} == {"bn1", "bn2", "down.1"}
    made = str(reference("residual", tmp_path))
    aligner("compare", made, "port.h5", "--repro", "repro", cwd=tmp_path, wanted=1)
    done = run("bn1.repro.py", cwd=tmp_path / "repro", wanted=1)
    assert float(re.search(r"relative L2 ([\d.e+-]+)", done.stdout).group(1)) > 0.1


def test_operations_that_compute_otherwise_are_the_frameworks_own(tmp_path):
    said = compared("operations", tmp_path, 1)
    causes = [origin["causes"][0] for origin in said["origins"]]
    assert {cause["id"] for cause in causes} == {"framework-differs"}
    wrong = ["interpolate"] if IS_OPENI else ["fmod", "interpolate", "smooth_l1_loss"]
    assert [cause["summary"].split()[0] for cause in causes] == wrong
    made = str(reference("operations", tmp_path))
    aligner("compare", made, "port.h5", "--repro", "repro", cwd=tmp_path, wanted=1)
    run(f"{wrong[0]}.repro.py", cwd=tmp_path / "repro", wanted=1)  # fails by itself


@openi
def test_an_unchanged_script_and_the_same_with_one_line_more(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "train_ms.py").write_text("from mindtorch.tools import mstorch_enable" + SCRIPT)
    for script, dump in (("train.py", "ref.h5"), ("train_ms.py", "port.h5")):
        done = aligner("capture", "-o", dump, script, cwd=tmp_path)
        assert done.stdout == "(2, 4)\n"
        assert ("shim" in done.stderr) is (dump == "port.h5")
    said = json.loads(aligner("compare", "--json", "ref.h5", "port.h5", cwd=tmp_path).stdout)
    assert (said["reference"]["framework"], said["port"]["framework"]) == ("torch", "mindtorch")
    assert said["outcome"] == "aligned"


def test_the_with_block_takes_a_net_of_mindtorch(tmp_path):
    program = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import aligner, mindtorch_nets
net, (x,) = mindtorch_nets.port_lenet()
torch, nn = mindtorch_nets.mindtorch_package()
with aligner.capture(net, "dump.h5"):
    net(torch.tensor(x))
"""
    run("-c", program, cwd=tmp_path)
    said = json.loads(aligner("show", "--json", "dump.h5", cwd=tmp_path).stdout)
    assert "mindtorch" in json.dumps(said)


def test_the_doctor_tells_of_it(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "aligner", "doctor", "--json"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    findings = {line["id"]: line for line in json.loads(done.stdout)["findings"]}
    assert findings["mindtorch-found"]["facts"]["maker"] == ("OpenI" if IS_OPENI else "mindnlp")
    assert findings["mindtorch-observed"]["state"] == "good"
    if not IS_OPENI:  # what mindnlp puts in torch's place is not taken for torch
        assert not [name for name, line in findings.items() if name.startswith("torch") and line["state"] == "good"]


@openi
@pytest.mark.parametrize("order", ["late", "first"])
def test_torch_imported_before_mindtorch_takes_its_place_is_told(order, tmp_path):
    """The traceback names an attribute that MindTorch lacks, and not the line that stands too low."""
    swap, net = (
        "from mindtorch.tools import mstorch_enable\n",
        "print(tuple(nn.Linear(3, 2)(torch.ones(1, 3)).shape))\n",
    )
    imports = "import torch\nfrom torch import nn\n"
    (tmp_path / "net.py").write_text(imports + swap + net if order == "late" else swap + imports + net)
    wanted = 1 if order == "late" else 0
    done = aligner("capture", "-o", "port.h5", "net.py", cwd=tmp_path, wanted=wanted)
    assert ("mindtorch.torch stands in its place" in " ".join(done.stderr.split())) is (order == "late")
