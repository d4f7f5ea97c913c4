"""To capture a training changes no bit of it; nothing stays behind."""

from __future__ import annotations

import numpy as np
import pytest

import aligner
from aligner import patches, registry
from aligner.capture.options import Options
from aligner.capture.session import Capture
from aligner.dump.reader import open_dump
from aligner.findings import TRAINING
from aligner.record import Phase

OPTIONS = Options(gradients=True, force=True)


def torch_training():
    torch = pytest.importorskip("torch")
    from tests.unit.training import small_tasks as tasks

    def run(lost=lambda *told: None):
        task = tasks.task(tasks.of("Adam", 1e-2))
        step = registry.of(task.model).trained(task.model, task, lost)

        def go():
            for row in tasks.batches(4):
                step([((torch.from_numpy(row[0]), torch.from_numpy(row[1])), {})])
            return [value.detach().numpy().copy() for value in task.model.state_dict().values()]

        return task.model, go

    return run


def mindspore_training():
    mindspore = pytest.importorskip("mindspore")
    from tests.unit.training import small_ports as ports

    def run(lost=lambda *told: None):
        mindspore.set_seed(0)
        task = ports.task(lambda p: ports.nn.Adam(p, 1e-2))
        rng = np.random.default_rng(0)
        for parameter in task.model.get_parameters():
            parameter.set_data(mindspore.Tensor(rng.standard_normal(parameter.shape).astype(np.float32) ** 2))
        task.model.set_train(True)
        step = registry.of(task.model).trained(task.model, task, lost)

        def go():
            for number in range(4):
                x = mindspore.Tensor(np.random.default_rng(number).standard_normal((4, 3, 8, 8)).astype(np.float32))
                step([((x, mindspore.Tensor([0, 1, 2, 3], mindspore.int32)), {})])
            return [parameter.asnumpy().copy() for parameter in task.model.get_parameters()]

        return task.model, go

    return run


@pytest.mark.parametrize("training", [torch_training, mindspore_training])
def test_a_captured_training_ends_with_the_same_bits(tmp_path, training):
    run = training()
    _, go = run()
    wanted = go()
    captures = []
    model, go = run(lambda *told: captures[0].lost(*told))
    standing = patches.places()
    capture = Capture(registry.of(model), model, tmp_path / "a.h5", OPTIONS)
    captures.append(capture)
    with capture:
        found = go()
    assert all(np.array_equal(one, other) for one, other in zip(wanted, found))
    assert patches.places() == standing
    with open_dump(tmp_path / "a.h5") as dump:
        assert list(dump.steps) == [0, 1, 2, 3]
        phases = {entry.key.phase for entry in dump.entries if entry.key.step == 2}
    assert phases == {Phase.FORWARD, Phase.BACKWARD, Phase.GRADIENT, Phase.UPDATE}


@pytest.mark.parametrize("training", [torch_training, mindspore_training])
def test_steps_end_with_those_that_are_wanted(tmp_path, training):
    model, go = training()()
    with Capture(registry.of(model), model, tmp_path / "a.h5", Options(gradients=True, steps=2)) as capture:
        go()
    assert capture.steps == 2
    with open_dump(tmp_path / "a.h5") as dump:
        assert (list(dump.steps), dump.header["steps"], dump.complete) == ([0, 1], 2, True)


def test_complex_parameters_have_a_norm(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Module()
    model.w = torch.nn.Parameter(torch.tensor([3 + 4j, 1 - 1j]))
    model.forward = lambda x: (model.w * x).abs().square().sum()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Capture(registry.of(model), model, tmp_path / "a.h5", OPTIONS):
        model(torch.ones(2)).backward()
        norm = model.w.grad.norm().item()
        optimizer.step()
    with open_dump(tmp_path / "a.h5") as dump:
        (facts,) = (facts for kind, facts in dump.findings if kind == TRAINING)
    assert facts["norm"] == pytest.approx(norm, rel=1e-6)


def test_python_asks_for_training_steps_by_a_word(tmp_path):
    """Both `with` blocks: of the reference, and of a port that is held to it."""
    pytest.importorskip("torch")
    model, go = torch_training()()
    with aligner.capture(model, tmp_path / "ref.h5", gradients=True):
        go()
    port, again = torch_training()()
    with aligner.replay(tmp_path / "ref.h5", port).capture(tmp_path / "port.h5", gradients=True):
        again()
    found = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")
    assert found.exit_code == 0
    assert {pair.reference.key.phase for pair in found.pairs if pair.reference} >= {Phase.GRADIENT, Phase.UPDATE}
