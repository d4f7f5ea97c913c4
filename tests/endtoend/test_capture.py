"""`aligner capture` with a factory: what is written, and what is said when something is wrong."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap

import numpy as np
import pytest

pytest.importorskip("torch", reason="these captures are of torch nets; MindSpore's are in the samples and adapters")

import aligner as api
from aligner import cli

NET = textwrap.dedent(
    """
    import numpy as np
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.drop = nn.Linear(4, 8), nn.Linear(8, 3), nn.Dropout(0.5)
        def forward(self, x, scale=1.0, extra=None):
            y = torch.relu(self.a(x)) * scale
            return self.b(self.drop(y)) + (0 if extra is None else extra)

    def build():
        return Net(), torch.randn(2, 4)

    def from_numpy():
        return Net(), np.ones((2, 4), np.float32)

    def steps():
        return Net(), [(torch.ones(2, 4),), (torch.zeros(2, 4),)]

    def by_name():
        return Net(), {"x": torch.ones(2, 4), "extra": torch.ones(3), "scale": 0.5}

    def alone():
        return Net()

    def three():
        return Net(), 1, 2

    def nothing():
        Net()

    def text():
        return "net"

    def objects():
        return Net(), np.array([object()])

    def leaves():
        raise SystemExit(0)

    class Leaving(nn.Linear):
        def forward(self, x):
            raise SystemExit(0)

    def leaves_inside():
        return Leaving(4, 4), torch.ones(2, 4)

    def trained():
        import aligner
        return aligner.Task(Net(), torch.ones(2, 4), loss=nn.MSELoss())

    class Nan(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
        def forward(self, x):
            return self.fc(x) / 0 * 0

    def nan():
        return Nan(), torch.ones(2, 4)

    class Passive(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)
        def forward(self, x):
            return self.used.forward(x)

    def passive():
        return Passive(), torch.ones(2, 4)
    """
)


@pytest.fixture
def net(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def test_a_capture_says_what_it_wrote_and_what_comes_next(net, aligner):
    done = aligner("capture", "net.py:build", "-o", "ref.h5")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "ref.h5: 12 values of 4 layers in 1 step(s)" in done.stderr
    assert "--from ref.h5" in done.stderr
    with api.open(net / "ref.h5") as dump:
        assert dump.complete
        assert dump.header["framework"] == "torch"
        assert dump.header["seed"] == 0
        assert dump.header["training"] is False
        assert dump.header["dropout"] == "inactive"
        assert [call.layer for call in dump.calls] == ["", "a", "drop", "b"]
        assert {entry.key.slot for entry in dump.entries if entry.key.layer == "a"} == {
            "weight",
            "bias",
            "input.0",
            "output.0",
        }


def test_torchs_compiler_is_not_imported(net, aligner):
    """That takes as long as torch itself."""
    done = aligner("capture", "net.py:build", "-o", "ref.h5", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0, done.stderr
    assert " torch.nn\n" in done.stderr
    assert " torch._dynamo\n" not in done.stderr


def test_two_captures_are_equal_and_options_may_stand_anywhere(net, warm):
    assert warm("capture", "net.py:build", "-o", "a.h5").returncode == 0
    assert warm("capture", "-o", "b.h5", "-q", "net.py:build").returncode == 0
    assert warm("compare", "a.h5", "b.h5").returncode == 0
    assert warm("capture", "-o", "c.h5", "net.py:build", "--seed", "7").returncode == 0
    assert warm("compare", "a.h5", "c.h5").returncode == 3, "other inputs"


@pytest.mark.parametrize("factory", ["from_numpy", "by_name", "steps"])
def test_inputs_of_every_form(net, warm, factory):
    done = warm("capture", f"net.py:{factory}", "-o", "ref.h5")
    assert done.returncode == 0, done.stderr
    with api.open(net / "ref.h5") as dump:
        assert len({call.step for call in dump.calls}) == (2 if factory == "steps" else 1)


def test_inputs_from_a_file(net, warm):
    np.savez(net / "inputs.npz", x=np.ones((5, 4), np.float32), extra=np.ones(3, np.float32))
    done = warm("capture", "net.py:alone", "--inputs", "inputs.npz", "-o", "ref.h5")
    assert done.returncode == 0, done.stderr
    with api.open(net / "ref.h5") as dump:
        assert dump[""].output.shape == (5, 3)


def test_layers_and_steps_and_weights(net, warm):
    done = warm("capture", "net.py:build", "-o", "x.h5", "--layers", "a", "--steps", "3", "--no-weights")
    assert done.returncode == 0, done.stderr
    with api.open(net / "x.h5") as dump:
        assert {call.layer for call in dump.calls} == {"", "a"}
        assert sorted({call.step for call in dump.calls}) == [0, 1, 2]
        assert all(entry.key.phase.value == "forward" for entry in dump.entries)


def test_dropout_in_train_mode(net, warm):
    silenced = warm("capture", "net.py:build", "-o", "s.h5", "--train")
    kept = warm("capture", "net.py:build", "-o", "k.h5", "--train", "--keep-dropout")
    assert silenced.returncode == kept.returncode == 0
    assert "Dropout was active" not in silenced.stderr
    assert "Dropout was active in train mode (drop)" in kept.stderr
    with api.open(net / "s.h5") as dump:
        assert (dump.header["training"], dump.header["dropout"]) == (True, "silenced")
        assert np.array_equal(dump["drop"].inputs[0].load(), dump["drop"].output.load())
    with api.open(net / "k.h5") as dump:
        assert dump.header["dropout"] == "active"


def test_estimate_writes_nothing(net, warm):
    done = warm("capture", "net.py:build", "--estimate")
    assert done.returncode == 0, done.stderr
    assert "12 values" in done.stdout
    assert sorted(os.listdir(net)) in (["__pycache__", "net.py"], ["net.py"])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["net.py:alone"], 2, "returned a model without inputs"),
        (["net.py:three"], 2, "tuple of 3"),
        (["net.py:nothing"], 2, "returned None"),
        (["net.py:objects"], 2, "numpy array of object, and torch has no tensor of that type"),
        (["net.py:build", "--rename", "a=b"], 2, "--rename is about a port"),
        (["net.py:build", "--allow-missing"], 2, "--allow-missing is about a port"),
        (["net.py:text"], 2, "str is not a model of any framework"),
        (["net.py:trained"], 2, "inputs without a label"),
        (["net.py:nix"], 2, "no function 'nix' in it"),
        (["nix.py:build"], 2, "no such file"),
        (["nix.nix:build"], 2, "no module 'nix"),
        (["net.py:build", "--layers", "conv*"], 2, "No layer matches conv* among 3 layers (the first are a, b, drop)"),
        (
            ["net.py:build", "--framework", "nix"],
            2,
            "No adapter for the framework 'nix'; installed are: mindspore, mindtorch, torch",
        ),
        (["net.py:build", "--device", "gpu"], 2, "gpu"),
        (["net.py:build", "--from", "nix.h5"], 3, "nix.h5"),
        (["net.py:build", "--from", "net.py"], 3, "net.py"),
        (["net.py:build", "--inputs", "net.py"], 2, "cannot be read as inputs"),
        (["net.py:build", "--steps", "0"], 2, "--steps"),
        (["net.py:build", "--train", "--eval"], 2, "--eval"),
        (["net.py:build", "--frmework", "torch"], 2, "--framework"),
        (["--train", "net.py"], 2, "--train works with a factory"),
    ],
)
def test_bad_input_gets_a_sentence(net, warm, arguments, code, said):
    done = warm("capture", "-o", "ref.h5", *arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (net / "ref.h5").exists()


def test_a_net_that_leaves_is_no_success(net, warm):
    before = warm("capture", "net.py:leaves", "-o", "none.h5")
    assert before.returncode == 2
    assert "net.py:leaves raised SystemExit" in before.stderr
    done = warm("capture", "net.py:leaves_inside", "-o", "ref.h5")
    assert done.returncode == 2
    assert "The net raised SystemExit" in done.stderr
    with api.open(net / "ref.h5") as dump:
        assert not dump.complete
        assert dump[""].inputs[0].shape == (2, 4)


def test_an_existing_dump_is_not_overwritten(net, warm):
    assert warm("capture", "net.py:build", "-o", "ref.h5").returncode == 0
    before = (net / "ref.h5").read_bytes()
    again = warm("capture", "net.py:build", "-o", "ref.h5")
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert (net / "ref.h5").read_bytes() == before
    assert warm("capture", "net.py:build", "-o", "ref.h5", "--force").returncode == 0


def test_places_that_cannot_be_written(net, warm):
    missing = warm("capture", "net.py:build", "-o", "nix/ref.h5")
    assert missing.returncode == 2
    assert "nix" in missing.stderr
    folder = warm("capture", "net.py:build", "-o", ".")
    assert folder.returncode == 2


def test_a_folder_that_may_not_be_written(tmp_path, monkeypatch, capsys):
    """Root may write everywhere, so what the system says is put in its place."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cli.main(["capture", "net.py:build", "-o", str(tmp_path / "ref.h5")]) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_arguments_that_hold_themselves():
    """They were walked for ever; many steps of the same arguments are not laid out in memory either."""
    from aligner import registry
    from aligner.capture import factory
    from aligner.capture.task import Task

    given = {"x": np.ones(2, np.float32)}
    given["me"], given["list"] = given, [given, given]
    run = factory.prepare(registry.load("torch"), Task(None, (given,)), None, 10**20)
    (made,), _ = run.steps[0]
    assert made["x"].tolist() == [1.0, 1.0]
    assert made["me"] is given
    assert run.count == 10**20


def test_nan_is_captured_and_named(net, warm):
    assert warm("capture", "net.py:nan", "-o", "nan.h5").returncode == 0
    with api.open(net / "nan.h5") as dump:
        assert np.isnan(dump[""].output.load()).any()
    assert warm("capture", "net.py:nan", "-o", "again.h5").returncode == 0
    assert warm("compare", "nan.h5", "again.h5").returncode == 0, "NaN at the same places agrees"


def test_layers_that_never_ran_are_listed_and_not_lost(net, warm):
    done = warm("capture", "net.py:passive", "-o", "ref.h5")
    assert done.returncode == 0
    with api.open(net / "ref.h5") as dump:
        assert set(dump.layers) == {"", "used", "unused"}
        assert {call.layer for call in dump.calls} == {""}


def test_a_full_disk_leaves_the_users_run_alone(net):
    """A file size limit stands for the full disk: the script ends as it would, the error comes after it."""
    (net / "train.py").write_text(
        "import torch\n"
        "net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(40)])\n"
        "print('result', tuple(net(torch.ones(1000, 64)).shape))\nprint('went on')\n"
    )
    limit = 4 << 20
    done = subprocess.run(
        [sys.executable, "-m", "aligner", "capture", "-o", "ref.h5", "train.py"],
        cwd=net,
        capture_output=True,
        text=True,
        timeout=200,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.stdout == "result (1000, 64)\nwent on\n"
    assert done.returncode == 3, done.stderr
    assert "ref.h5" in done.stderr
    assert "Traceback" not in done.stderr
    with api.open(net / "ref.h5") as dump:
        kept = [entry for entry in dump.entries if entry.key.layer == "0"]
        assert len(kept) == 4
        assert all(np.isfinite(entry.load()).all() for entry in kept)
    shown = subprocess.run(
        [sys.executable, "-m", "aligner", "show", "ref.h5"], cwd=net, capture_output=True, text=True, timeout=200
    ).stdout
    assert "never ran" not in shown
    assert shown.count("not captured: the capture ended early") > 9


SLOW = """
import os, signal, time, torch
from torch import nn
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
WHEN = int(os.environ["WHEN"])

def press():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)

class Stop(nn.Module):
    calls = 0
    def forward(self, x):
        Stop.calls += 1
        if Stop.calls == WHEN:
            press()
        return x

def build():
    if WHEN == 0:
        press()
    return nn.Sequential(nn.Linear(4, 4), Stop(), nn.Linear(4, 4)), torch.ones(2, 4)
"""


def press(net, when, *arguments):
    """Ctrl-C while the net is built (0), in its first run (1), in the forced pass (2)."""
    (net / "slow.py").write_text(SLOW)
    done = subprocess.run(
        [sys.executable, "-m", "aligner", "capture", "slow.py:build", *arguments],
        cwd=net,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "WHEN": str(when)},
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_interrupted(net):
    """Ctrl-C: exit code 130, and the dump so far is named and readable."""
    code, told = press(net, 1, "-o", "ref.h5")
    assert code == 130, told
    assert "`aligner show ref.h5`" in told
    with api.open(net / "ref.h5") as dump:
        assert not dump.complete
        assert dump["0"].output.shape == (2, 4)


def test_interrupted_before_and_after_the_net_ran(net):
    """An older dump that Ctrl-C left alone is not called the one that was being written."""
    assert press(net, -1, "-o", "ref.h5")[0] == 0
    before = (net / "ref.h5").read_bytes()
    for arguments in (("-o", "new.h5"), ("-o", "ref.h5", "--force")):
        code, told = press(net, 0, *arguments)
        assert code == 130
        assert "aligner show" not in told
    assert (net / "ref.h5").read_bytes() == before
    code, told = press(net, 2, "--from", "ref.h5", "-o", "port.h5", "--lang", "zh")
    assert code == 130
    assert "`aligner show port.h5`" in told
    with api.open(net / "port.h5") as dump:
        assert dump.complete, "the free run was over"


def test_chinese(net, warm):
    done = warm("capture", "net.py:build", "-o", "ref.h5", env={"ALIGNER_LANG": "zh"})
    assert "个值" in done.stderr
    wrong = warm("capture", "net.py:nix", "-o", "ref2.h5", "--lang", "zh")
    assert "没有函数" in wrong.stderr


def test_compare_json_has_the_schema(net, warm):
    warm("capture", "net.py:build", "-o", "a.h5")
    warm("capture", "net.py:build", "-o", "b.h5")
    answer = json.loads(warm("compare", "a.h5", "b.h5", "--json").stdout)
    assert answer["schema"] == "aligner.compare/1"
    assert answer["outcome"] == "aligned"
    assert answer["first_divergence"] is None


@pytest.mark.parametrize("sides", [("a.h5", "b.h5"), ("b.h5", "a.h5")])
def test_layers_that_one_side_was_not_asked_for_do_not_fail(net, warm, sides):
    assert warm("capture", "net.py:build", "-o", "a.h5").returncode == 0
    assert warm("capture", "net.py:build", "-o", "b.h5", "--layers", "a").returncode == 0
    done = warm("compare", *sides)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("ALIGNED")
    assert "left out of the other dump" in " ".join(done.stdout.split())
    assert "Only the" not in done.stdout, "nothing is listed as missing"
