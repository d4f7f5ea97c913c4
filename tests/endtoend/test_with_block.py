"""`with aligner.capture(net, path)` in a user's own program: what may happen in the block and around it."""

from __future__ import annotations

import os
import traceback

import pytest

import aligner
from aligner import errors

torch = pytest.importorskip("torch", reason="one framework is enough to try the block")


@pytest.fixture
def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())


X = torch.ones(2, 4)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_the_working_directory_may_change(folder, net):
    with aligner.capture(net, "a.h5"):
        net(X)
        os.chdir("sub")
    assert files(folder) == ["a.h5"]
    os.chdir(folder)
    with pytest.raises(errors.CaptureError, match="never called"), aligner.capture(net, "b.h5"):
        os.chdir("sub")
    assert files(folder) == ["a.h5"]


def test_a_dump_deleted_meanwhile_is_told(folder, net):
    capture = aligner.capture(net, "a.h5").__enter__()
    net(X)
    os.unlink("a.h5")
    with pytest.raises(errors.DumpError, match="deleted or replaced"):
        capture.close()


def test_a_journal_cleared_away_does_no_harm(folder, net):
    with aligner.capture(net, "a.h5"):
        net(X)
        os.unlink("a.h5.journal")
    with aligner.open("a.h5") as dump:
        assert dump.complete
    assert files(folder) == ["a.h5"]


@pytest.mark.parametrize("steps", [0, -1, "2", 1.5])
def test_steps_that_are_no_number_of_steps(net, steps):
    with pytest.raises(errors.UsageError, match="steps is"):
        aligner.capture(net, "a.h5", steps=steps)


def test_no_frame_of_ours_in_the_nets_error(folder, net):
    with pytest.raises(RuntimeError) as raised, aligner.capture(net, "a.h5"):
        net(torch.ones(2, 5))
    names = [frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert not [name for name in names if "aligner_hooks" in name or f"{os.sep}capture{os.sep}" in name]
    assert any("linear.py" in name for name in names)
    with aligner.open("a.h5") as dump:
        assert not dump.complete
        assert dump["0"].inputs[0].load().shape == (2, 5)


def test_a_fork_leaves_the_dump_to_its_parent(folder, net):
    with aligner.capture(net, "a.h5"):
        net(X)
        child = os.fork()
        if child == 0:
            os.chdir("sub")  # where it could be seen to write
    if child == 0:
        os._exit(0)  # what it would have said comes out above
    assert os.waitpid(child, 0)[1] == 0
    with aligner.open("a.h5") as dump:
        assert dump.complete


def test_keys_that_are_spelled_alike_stay_apart(folder):
    class Net(torch.nn.Module):
        def forward(self, x):
            return {1: x, "1": x * 2, "~": None}

    model = Net()
    with aligner.capture(model, "a.h5"):
        model(X)
    with aligner.open("a.h5") as dump:
        outputs = {e.key.slot: float(e.load().max()) for e in dump.entries if e.key.slot.startswith("output")}
    assert outputs == {"output.0.1": 1.0, "output.0.1~1": 2.0}
    with aligner.capture(model, "b.h5"):
        model(X)
    assert aligner.compare("a.h5", "b.h5").aligned


def test_force_replaces_a_dump_and_asks_for_nothing_else(folder, net):
    for rows in (2, 3):
        with aligner.capture(net, "a.h5", force=True):
            net(torch.ones(rows, 4))
    with aligner.open("a.h5") as dump:
        assert dump[""].calls[0].inputs
        assert dump["0"].input.array.shape == (3, 4)
        assert not dump.findings


class Weighted(torch.nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.body, self.head, self.dtype = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), dtype

    def forward(self, x):
        return self.head(torch.softmax(self.body(x).to(self.dtype), -1).float())


def test_a_replay_in_a_notebook_hears_what_the_command_hears_and_runs_again(folder):
    """The cell with the capture is run a second time, after the first has written its dump."""
    net, x = Weighted(), torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    with aligner.capture(net, "ref.h5"):
        net(x)
    for _ in range(2):
        replay = aligner.replay("ref.h5", Weighted(torch.bfloat16))
        with replay.capture("port.h5", force=True):
            replay.model(*replay.inputs(step=0))
    found = aligner.compare("ref.h5", "port.h5")
    assert [(cast.layer, cast.port.dtype) for cast in found.casts] == [("", "bfloat16")]
    with pytest.raises(errors.DumpError, match="force=True"):
        replay.capture("port.h5").__enter__()
