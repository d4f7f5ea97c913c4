"""Files that are not what their names say: each is told of and left out, and nothing in them runs."""

from __future__ import annotations

import io
import os
import pickle

import numpy as np
import pytest

from aligner.cli import main
from aligner.dump.reader import open_dump
from aligner.ingest import npy
from tests.unit.ingest.folder import Folder, small

NAME = "Default_extra-Tanh_Tanh-op0"


class Evil:
    """Leaves a file behind if it is ever unpickled."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def saved(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def header(text, data=b""):
    body = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body + data


GOOD = saved(np.arange(6, dtype=np.float32))
HOSTILE = {
    "empty": b"",
    "text": b"not an array at all",
    "truncated": GOOD[:-3],
    "longer": GOOD + b"abcd",
    "pickle": saved(np.array([Evil()], dtype=object), allow_pickle=True),
    "plain pickle": pickle.dumps(Evil()),
    "strings": saved(np.array(["a", "b"])),
    "fields": saved(np.zeros(3, np.dtype([("a", "f4"), ("b", "i4")]))),
    "huge": header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 1000000000), }"),
    "negative": header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"),
    "code": header("__import__('os').mkdir('unpickled')"),
    "deep": header("(" * 100),
    "no keys": header("{}"),
    "long header": b"\x93NUMPY\x02\x00" + (1 << 30).to_bytes(4, "little") + b"x" * 100,
    "dates": saved(np.array(["2020-01-01"], "M8[D]")),
    "width": header("{'descr': '<f16', 'fortran_order': False, 'shape': (1,), }", b"0" * 16),
}


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_a_file_that_is_no_plain_array_is_left_out_and_told(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, _ = small(tmp_path / "ms")
    folder.value("Tanh", NAME, "output", 0, np.zeros(1, np.float32)).write_bytes(HOSTILE[kind])
    out = tmp_path / "port.h5"
    assert main(["import", str(tmp_path / "ms"), "-o", str(out)]) == 0
    assert not (tmp_path / "unpickled").exists()
    with open_dump(out) as dump:
        assert "ingest-unread" in {note.message for note in dump.notes}
        assert not [entry for entry in dump.entries if entry.key.layer == "extra"]
        assert [entry for entry in dump.entries if entry.key.layer == "fc"]


def test_links_and_pipes_are_not_opened(tmp_path):
    folder, _ = small(tmp_path / "ms")
    secret = tmp_path / "secret.npy"
    np.save(secret, np.arange(3, dtype=np.float32))
    file = folder.value("Tanh", NAME, "output", 0, np.zeros(1, np.float32))
    file.unlink()
    file.symlink_to(secret)
    other = folder.value("Tanh", NAME.replace("extra", "pipe"), "output", 0, np.zeros(1, np.float32))
    other.unlink()
    os.mkfifo(other)
    (tmp_path / "ms" / "rank_0" / "around").symlink_to(tmp_path / "ms")
    out = tmp_path / "port.h5"
    assert main(["import", str(tmp_path / "ms"), "-o", str(out)]) == 0
    with open_dump(out) as dump:
        assert "ingest-links" in {note.message for note in dump.notes}
        assert not {"extra", "pipe"} & set(dump.layers)


@pytest.mark.parametrize(
    "name", ["Default_a;rm -rf b-ReLU_ReLU-op0", "Default_..-.._x-ReLU_ReLU-op0", "Default_\udcff-ReLU_R-op0"]
)
def test_odd_names_become_odd_layers_or_none(tmp_path, name):
    folder, _ = small(tmp_path / "ms")
    folder.value("ReLU", name, "output", 0, np.zeros(2, np.float32))
    out = tmp_path / "port.h5"
    assert main(["import", str(tmp_path / "ms"), "-o", str(out)]) == 0
    assert "fc" in open_dump(out).layers


def test_a_value_that_cannot_be_read_hides_what_its_layer_hands_on(tmp_path):
    """What stands there instead would be another operator's."""
    folder = Folder(tmp_path / "ms")
    x = [np.arange(6, dtype=np.float32) + at for at in range(3)]
    folder.operator("MatMul", ["fc-Dense"], [x[0]], [x[1]])
    folder.operator("BiasAdd", ["fc-Dense"], [x[1]], [x[2]])
    broken = next((tmp_path / "ms").rglob("BiasAdd*output*"))
    broken.write_bytes(broken.read_bytes()[:-4])
    out = tmp_path / "port.h5"
    assert main(["import", str(tmp_path / "ms"), "-o", str(out)]) == 0
    with open_dump(out) as dump:
        assert [entry.key.slot for entry in dump.entries if entry.key.layer == "fc"] == ["input.0"]


def test_a_folder_that_cannot_be_read_is_told(tmp_path, capsys):
    assert main(["import", str(tmp_path / "none"), "-o", str(tmp_path / "p.h5")]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_a_large_array_is_read_in_pieces_for_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(npy, "PIECE", 16)
    array = np.arange(100, dtype=np.float32)
    np.save(tmp_path / "a.npy", array)
    np.save(tmp_path / "b.npy", array.reshape(10, 10))
    np.save(tmp_path / "c.npy", array.astype(np.int32))
    one, other, third = (npy.fingerprint(str(tmp_path / f"{name}.npy")) for name in "abc")
    assert one[1] == other[1] != third[1]
    assert other[0].shape == (10, 10)
