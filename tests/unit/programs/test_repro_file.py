"""The files of a program: names that any disk takes, nothing overwritten, nothing written through a link."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.errors import UsageError
from aligner.programs import repro_file
from aligner.programs.repro_file import file_name, write
from tests.unit.programs.repros import made


def test_files_lie_beside_each_other_and_are_never_overwritten(tmp_path):
    written = write(made(), tmp_path / "new" / "folder")
    assert written.script.name == "blocks.0.fc.repro.py"
    assert written.complete
    with np.load(written.script.with_suffix(".npz")) as kept:
        assert set(kept.files) == {"dtypes", "input.0", "expected.output.0", "parameter.weight", "parameter.bias"}
    with pytest.raises(UsageError, match="there already"):
        write(made(), tmp_path / "new" / "folder")


def test_a_folder_that_is_a_file_is_told_of(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written to"):
        write(made(), tmp_path / "file")


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ("", "net"),
        ("token", "token"),
        ("层.0", "层.0"),
        ("../../x", "_.._x-"),
        ("-c x", "c_x-"),
        ("..", "-"),
        ("a/b", "a_b-"),
    ],
)
def test_a_layers_name_is_a_file_name(layer, name, tmp_path):
    """None of them can be imported in place of a module: "token" is one of Python's own."""
    script = write(made(layer=layer), tmp_path).script
    assert script.parent == tmp_path
    assert script.name.startswith(name)
    assert script.name.endswith(".repro.py")
    assert name[-1] == "-" or script.name == f"{name}.repro.py"


@pytest.mark.parametrize("layer", ["x" * 5000, "层" * 120, "a." * 300, "é" * 200, "\U0001f600" * 90, "/" * 4000])
def test_a_long_name_is_cut_to_what_a_disk_takes(layer, tmp_path):
    script = write(made(layer=layer), tmp_path).script
    assert len(script.with_suffix(".npz").name.encode()) <= 150
    assert script.exists()


def test_names_that_are_cut_to_the_same_are_two_files():
    names = ["层" * 200, "网" + "层" * 200, "a/b", "a b", "a_b", "../a_b", "-a_b"]
    assert len({file_name(name) for name in names}) == len(names)


@pytest.mark.parametrize("ending", [".repro.py", ".repro.npz"])
@pytest.mark.parametrize("there", ["file", "link", "dangling link"])
def test_nothing_is_overwritten_and_no_link_is_followed(tmp_path, ending, there):
    target, folder = tmp_path / "precious", tmp_path / "folder"
    folder.mkdir()
    planted = folder / f"blocks.0.fc{ending}"
    if there == "file":
        planted.write_text("mine")
    else:
        planted.symlink_to(target)
    if there == "link":
        target.write_text("mine")
    with pytest.raises(UsageError, match="there already"):
        write(made(), folder)
    assert list(folder.iterdir()) == [planted]
    if there == "dangling link":
        assert not target.exists()
    else:
        assert planted.read_text() == "mine"


def test_a_full_disk_leaves_no_half_of_it(tmp_path, monkeypatch):
    def full(file, **_):
        file.write(b"x")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(repro_file.np, "savez", full)
    with pytest.raises(UsageError, match="No space left"):
        write(made(), tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())
