"""`aligner show` on real dumps."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from aligner import cli
from aligner.report import lines
from tests.unit.report import small_dumps


@pytest.fixture
def dumps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_dumps.write(tmp_path / "ref.h5")
    small_dumps.write(tmp_path / "port.h5", shift=0.01)
    small_dumps.write(tmp_path / "forced.h5", shift=0.01, forced=True)
    small_dumps.write(tmp_path / "renamed.h5", shift=0.01, rename="stem_")
    return tmp_path


def show(capsys, *arguments, language="en"):
    code = cli.main(["show", *arguments, "--lang", language])
    streams = capsys.readouterr()
    return code, streams.out, streams.err


@pytest.mark.parametrize("language", ["en", "zh"])
def test_golden(dumps, capsys, golden, language):
    golden(f"show-tree.{language}.txt", show(capsys, "ref.h5", language=language)[1])
    golden(f"show-layer.{language}.txt", show(capsys, "ref.h5", "conv", language=language)[1])
    golden(f"show-against.{language}.txt", show(capsys, "ref.h5", "norm", "--against", "port.h5", language=language)[1])


@pytest.mark.parametrize("arguments", [["ref.h5"], ["ref.h5", "norm"], ["ref.h5", "norm", "--against", "port.h5"]])
def test_it_fits_sixty_columns(dumps, capsys, arguments):
    code, out, _ = show(capsys, *arguments)
    assert code == 0
    assert max(map(lines.width, out.splitlines())) <= 60


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_a_layer_did_wrong_by_itself_is_shown_apart(dumps, capsys, golden, language):
    code, out, _ = show(capsys, "ref.h5", "norm", "--against", "forced.h5", "--worst", "2", language=language)
    assert code == 0
    assert max(map(lines.width, out.splitlines())) <= 60
    golden(f"show-forced.{language}.txt", out)
    assert out.count("output.0") == 2


def test_what_a_layer_did_wrong_by_itself_for_programs(dumps, capsys):
    found = json.loads(show(capsys, "ref.h5", "norm", "--against", "forced.h5", "--json")[1])
    (row,) = found["forced"]
    assert (row["reference"]["phase"], row["port"]["phase"], row["port"]["slot"]) == ("forward", "forced", "output.0")
    assert [pair["port"]["phase"] for pair in found["pairs"]] == ["forward", "forward"]
    alone = show(capsys, "forced.h5", "norm")[1]
    assert "step 0, forced pass on the reference's values, call 0" in alone
    assert json.loads(show(capsys, "ref.h5", "norm", "--against", "port.h5", "--json")[1])["forced"] == []


def test_depth_counts_what_it_hides(dumps, capsys):
    out = show(capsys, "ref.h5", "(net)", "--tree")[1]
    assert "fc" in out


def test_values_and_slots(dumps, capsys):
    code, out, _ = show(capsys, "ref.h5", "conv", "--slot", "output.*", "--values", "0,:2")
    assert code == 0
    assert "input.0" not in out
    assert out.rstrip().splitlines()[-1].strip().startswith("[")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["ref.h5", "nrm"], "Did you mean norm?"),
        (["ref.h5", "conv", "--values", "9"], "outside an array of shape"),
        (["ref.h5", "conv", "--values", "x"], "selects nothing"),
        (["ref.h5", "--against", "port.h5"], "no layer is named"),
    ],
)
def test_what_cannot_be_shown_is_told(dumps, capsys, arguments, found):
    code, out, err = show(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert found in err


def test_a_renamed_layer_is_found(dumps, capsys):
    code, out, _ = show(capsys, "ref.h5", "norm", "--against", "renamed.h5")
    assert code == 0
    assert "in the port: stem_norm" in out
    assert "eps: 1e-05 in the reference, 1e-03 in the port" in out


def test_worst_elements_stand_with_the_record_that_differs(dumps, capsys):
    out = show(capsys, "ref.h5", "norm", "--against", "port.h5", "--worst", "3")[1]
    assert out.count("difference") == 1
    rows = out.rstrip().splitlines()[-3:]
    assert [float(row.split()[-2]) for row in rows] == pytest.approx([0.01] * 3, abs=1e-6)
    errors = [float(row.split()[-1]) for row in rows]
    assert errors == sorted(errors, reverse=True), "what they are sorted by"


def test_json(dumps, capsys):
    tree = json.loads(show(capsys, "ref.h5", "--json")[1])
    assert [layer["layer"] for layer in tree["layers"]] == ["", "conv", "norm", "fc"]
    layer = json.loads(show(capsys, "ref.h5", "conv", "--json", "--values", "0")[1])
    assert layer["records"][0]["slot"] == "weight"
    assert len(layer["records"][0]["values"]) == 3
    both = json.loads(show(capsys, "ref.h5", "norm", "--against", "port.h5", "--json")[1])
    (wrong,) = [pair for pair in both["pairs"] if pair["worst"]]
    assert wrong["reference"]["slot"] == "output.0"
    assert abs(wrong["worst"][0]["difference"] - 0.01) < 1e-6


def test_recover_leaves_a_closed_dump_alone(dumps, capsys):
    before = (dumps / "ref.h5").read_bytes()
    assert show(capsys, "ref.h5", "--recover")[0] == 0
    assert (dumps / "ref.h5").read_bytes() == before


def test_nan_on_one_side_is_infinitely_far(tmp_path, capsys):
    paths = [
        str(small_dumps.write(tmp_path / "ref.h5")),
        str(small_dumps.write(tmp_path / "bad.h5", shift=float("nan"))),
    ]
    code, out, _ = show(capsys, paths[0], "norm", "--against", paths[1])
    assert code == 0
    assert "NaN 8, Inf 0" in out
    assert "error inf" in out


def test_ulp_on_request(dumps, capsys):
    assert "ULP" not in show(capsys, "ref.h5", "norm", "--against", "port.h5")[1]
    assert " ULP" in show(capsys, "ref.h5", "norm", "--against", "port.h5", "--ulp")[1]


def test_a_killed_capture_is_shown_and_recovered(tmp_path, capsys):
    path = tmp_path / "killed.h5"
    script = (
        "import os, sys\n"
        "import numpy as np\n"
        "from aligner.dump.writer import DumpWriter\n"
        "from aligner.record import Key, Layer, LayerSpec, Phase, Record\n"
        "writer = DumpWriter(sys.argv[1], {'framework': 'torch', 'model': 'Net'})\n"
        "writer.layer(Layer('', 'torch.nn.Net', LayerSpec('Net', {}), False, False))\n"
        "key = Key(0, Phase.FORWARD, '', 0, 'input.0')\n"
        "writer.write(Record(key, 1, 'float32', np.ones(3, np.float32)))\n"
        "os._exit(9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        check=False,
    )
    assert done.returncode == 9
    code, out, _ = show(capsys, str(path))
    assert code == 0
    assert "read through its journal" in " ".join(out.split())
    assert len(list(tmp_path.iterdir())) == 2, "the journal stands beside it"
    code, out, err = show(capsys, str(path), "(net)", "--recover")
    assert code == 0
    assert "min 1  mean 1  max 1  rms 1" in out
    assert "recovered" in err
    assert len(list(tmp_path.iterdir())) == 1


def test_a_layer_without_a_call_is_said_to_have_never_run_only_where_that_is_known(tmp_path, capsys):
    """Not of a capture that ended early, nor of what --layers left out, nor of an import."""
    states = {
        "whole": ({}, None, "never ran in this capture", "本次采集中未运行"),
        "cut": ({"steps": 0}, False, "not captured: the capture ended early", "未采集：采集提前结束"),
        "chosen": ({"selected": ["conv"]}, None, "left out by --layers", "不在 --layers 之内"),
        "imported": ({"imported": "/dumped"}, None, "not in what was imported", "导入的文件中没有"),
    }
    for name, (header, complete, english, chinese) in states.items():
        path = small_dumps.write(tmp_path / f"{name}.h5", unused=True, complete=complete, **header)
        for arguments in ((), ("spare",)):
            for language, said in (("en", english), ("zh", chinese)):
                assert said in show(capsys, str(path), *arguments, language=language)[1], (name, arguments)
        if name != "whole":
            assert "never ran" not in show(capsys, str(path))[1]
        assert "0 steps" not in show(capsys, str(path))[1], "beside the one whose records are counted"
