"""`--repro` on a dump that somebody forged: the program does what it says, and every layer gets its own."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest

from aligner.cli import main
from tests.endtoend.test_hostile_findings import BUILD, CHECK, make

SHELL = "torch.utils.collect_env.subprocess.Popen('touch {}', shell=True)"


@pytest.fixture
def dumps(tmp_path, monkeypatch):
    """Forged dumps of two layers, of which `act` (or what it is called) is wrong by itself; `python` builds it."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)

    def forge(*pythons, names=("act",)):
        places = [(layer, slot) for layer in ("norm", "act") for slot in ("input.0", "output.0")]
        values = {place: rng.normal(size=(3, 4)).astype("<f4") for place in places}
        other = {place: array + np.float32(0.5 * (place == ("act", "output.0"))) for place, array in values.items()}
        token = make(tmp_path / "ref.h5", values, [], more=names[1:])
        findings = []
        for name, python in zip(names, pythons):
            check = copy.deepcopy(CHECK)
            check.update(at=[0, name, 0, "output.0"], port=[name, 0, "output.0"], owner=name)
            findings += [("check", check), ("layer", {**BUILD, "layer": name, "python": python})]
        make(tmp_path / "port.h5", other, findings, more=names[1:], reference_token=token)
        return main(["compare", "ref.h5", "port.h5", "--repro", "repro"])

    return forge


def test_code_in_a_dump_is_not_written_into_the_program(dumps, tmp_path, capsys):
    """The whole way: capture, compare, run. It was `Popen(..., shell=True)` that ran."""
    assert dumps(SHELL.format(tmp_path / "pwned")) == 1
    told = capsys.readouterr().err
    assert "what the dump says of it is more than a layer of torch's own" in told
    (script,) = (tmp_path / "repro").glob("*.py")
    assert "Popen" not in script.read_text()
    assert "touch" not in script.read_text()
    pytest.importorskip("torch", reason="the program is one for torch")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 2, done.stderr
    assert "Fill in" in done.stdout
    assert not (tmp_path / "pwned").exists()


def test_a_long_name_and_a_file_in_the_way_keep_nothing_from_the_other_layers(dumps, tmp_path, capsys):
    names = ("act", "层" * 120, "a/b", "a b", "../up", "good")
    (tmp_path / "repro").mkdir()
    (tmp_path / "repro" / "good.repro.npz").symlink_to(tmp_path / "precious")
    assert dumps(*["nn.GELU()"] * 6, names=names) == 1
    told = capsys.readouterr().err
    assert told.count("run it where torch is") == 5
    assert "good.repro.npz is there already" in told
    assert not (tmp_path / "precious").exists()
    scripts = [script.name for script in (tmp_path / "repro").glob("*.repro.py")]
    assert len(scripts) == 5
    assert "act.repro.py" in scripts
    assert not [path for path in tmp_path.iterdir() if path.name not in ("repro", "ref.h5", "port.h5")]
    assert dumps_again(tmp_path) == 2


def dumps_again(folder):
    """Everything is there by now: nothing was written, which is an error."""
    (folder / "repro" / "good.repro.py").touch()
    return main(["compare", "ref.h5", "port.h5", "--repro", "repro"])
