"""Training steps of MindTorch held to torch's, by all three doors; a mistake is told at its stage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("mindtorch") is None:
    pytest.skip("no mindtorch is installed", allow_module_level=True)

HERE = Path(__file__).parent
IS_OPENI = (Path(find_spec("mindtorch").origin).parent / "torch").is_dir()
openi = pytest.mark.skipif(not IS_OPENI, reason="mindnlp's optimizers have no kernels on a CPU")
TRAININGS = "tests.endtoend.mindtorch_trainings"

PACKAGE = (
    """
import mindtorch
torch = mindtorch
"""
    if not IS_OPENI
    else """
from mindtorch import torch
"""
)
START = """
import mindspore as ms
from tests.endtoend import mindtorch_trainings as trainings
nn = torch.nn
net = trainings.net(torch, nn).train()
criterion = nn.CrossEntropyLoss()
params = tuple(net.parameters())
gradients = ms.value_and_grad(lambda x, label: criterion(net(x), label), None, params)

def tensors(grads):
    if hasattr(torch, "cast_to_adapter_tensor"):
        return [torch.cast_to_adapter_tensor(grad) for grad in grads]
    return [torch.tensor(grad, device=param.device) for grad, param in zip(grads, params)]
"""
OWN = f"""{PACKAGE}{START}
optimizer = trainings.own({{lr}})(torch)(params)
for x, label in trainings.batches(torch):
    loss, grads = gradients(x, label)
    optimizer.step(tensors(grads))
"""
SCALED = f"""{PACKAGE}{START}
optimizer = torch.optim.SGD(params, lr=0.1, momentum={{momentum}}, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
scaler = torch.cuda.amp.GradScaler(init_scale=16.0)
gradients = ms.value_and_grad(lambda x, label: scaler.scale(criterion(net(x), label)), None, optimizer.parameters)
for x, label in trainings.batches(torch):
    loss, grads = gradients(x, label)
    grads = scaler.unscale(optimizer, grads)
    scaler.step(optimizer, grads)
    scaler.update()
    schedule.step()
"""
CALLED = f"""{PACKAGE}{START}
optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
for x, label in trainings.batches(torch):
    loss, grads = gradients(x, label)
    optimizer(grads)
    schedule.step()
"""
BLOCK = f"""
import sys
import aligner
from tests.endtoend.mindtorch_nets import mindtorch_package
torch, _ = mindtorch_package()
{START}
optimizer = trainings.own()(torch)(params)
with aligner.replay(sys.argv[1], net).capture("port.h5", gradients=True):
    for x, label in trainings.batches(torch):
        loss, grads = gradients(x, label)
        optimizer.step(tensors(grads))
"""


def run(*arguments, cwd, wanted=0):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == wanted, done.stdout + done.stderr
    return done


def aligner(*arguments, cwd, wanted=0):
    return run("-m", "aligner", *arguments, cwd=cwd, wanted=wanted)


def reference(name, folder):
    """The dump of torch's training: from the main environment, or made here where torch is."""
    given = Path(os.environ.get("ALIGNER_REFERENCES", folder)) / f"mindtorch_trained_{name}.h5"
    if not given.exists() and not IS_OPENI:
        pytest.skip("references come from the main environment: run tests/environments.sh")
    if not given.exists():
        aligner("capture", "-q", f"{TRAININGS}:reference_{name}", "-o", str(given), cwd=folder)
    return str(given)


def compared(made, folder, wanted):
    return json.loads(aligner("compare", "--json", made, "port.h5", cwd=folder, wanted=wanted).stdout)


def built(port, name, folder, wanted):
    """What compare says of a factory's training, held to the reference of this name."""
    made = reference(name, folder)
    aligner("capture", "-q", f"{TRAININGS}:port_{port}", "--from", made, "-o", "port.h5", cwd=folder)
    return compared(made, folder, wanted)


def scripted(text, name, folder, wanted):
    """The same of a script's."""
    made = reference(name, folder)
    (folder / "train.py").write_text(text)
    aligner("capture", "-q", "--gradients", "--from", made, "-o", "port.h5", "train.py", cwd=folder)
    return compared(made, folder, wanted)


def only(said):
    """The one origin, and its first cause."""
    (origin,) = said["origins"]
    return origin, (origin["causes"] or [{}])[0]


@pytest.mark.parametrize("name", ["own", pytest.param("sgd", marks=openi)])
def test_the_steps_of_a_task_are_aligned(name, tmp_path):
    said = built(name, name, tmp_path, 0)
    assert said["outcome"] == "aligned"
    assert {"backward", "gradient", "update"} <= {pair["phase"] for pair in said["pairs"]}


@openi
def test_another_kind_of_optimizer_is_proved(tmp_path):
    origin, cause = only(built("adam", "adamw", tmp_path, 1))
    assert (origin["where"], origin["step"], cause["confirmed"]) == ("update", 0, True)


@pytest.mark.parametrize(("port", "where"), [("own_rate", "update"), ("own_clipped", "clip")])
def test_a_mistake_with_an_optimizer_of_ones_own_is_told_at_its_stage(port, where, tmp_path):
    origin, _ = only(built(port, "own", tmp_path, 1))
    assert (origin["where"], origin["step"]) == (where, 0)


def test_a_script_whose_optimizer_has_a_step_of_gradients(tmp_path):
    assert scripted(OWN.format(lr=0.1), "own", tmp_path, 0)["outcome"] == "aligned"


@openi
def test_a_script_whose_optimizer_is_called(tmp_path):
    assert scripted(CALLED, "scheduled", tmp_path, 0)["outcome"] == "aligned"


@openi
@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_a_script_with_a_loss_scaler_and_a_schedule(momentum, tmp_path):
    said = scripted(SCALED.format(momentum=momentum), "scheduled", tmp_path, int(momentum != 0.9))
    if momentum != 0.9:
        origin, cause = only(said)
        assert (origin["where"], origin["step"], cause["confirmed"]) == ("update", 1, True)


def test_the_with_block_holds_a_training(tmp_path):
    made = reference("own", tmp_path)
    (tmp_path / "block.py").write_text(BLOCK)
    run("block.py", made, cwd=tmp_path)
    said = compared(made, tmp_path, 0)
    assert said["outcome"] == "aligned"
    assert "update" in {pair["phase"] for pair in said["pairs"]}
