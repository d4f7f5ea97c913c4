"""A disk that gets full while a net runs: through whichever door, the user's own error and exit code come first."""

from __future__ import annotations

import errno
import resource
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

import aligner as api
from aligner import cli, errors
from aligner.dump import closing
from aligner.dump.data import DataFile
from aligner.dump.journal import Journal
from aligner.dump.writer import DumpWriter
from aligner.findings import EXPECTED
from tests.unit.ingest.folder import small

torch = pytest.importorskip("torch", reason="one framework is enough to fill a disk")

NET = textwrap.dedent(
    """
    import os, resource
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
        def forward(self, x):
            return self.b(torch.relu(self.a(x)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(Block(), Block())
            self.last = nn.Linear(64, 3)
        def forward(self, x):
            x = self.blocks(x)
            print("reached", flush=True)
            if os.environ.get("RAISES"):
                raise ValueError("mine")
            return self.last(x)

    def build():
        torch.manual_seed(0)
        limit = int(os.environ.get("LIMIT", "0")) << 10
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return Net(), torch.randn(64, 64)
    """
)
SCRIPT = "from net import build\nnet, x = build()\nnet(x)\n"
LIMITS = range(60, 320, 32)
WEIGHTS = 10


@contextmanager
def limited(kib):
    """No file may become longer, as on a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kib << 10, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@dataclass(frozen=True)
class Kept:
    """What a dump holds."""

    records: int
    steps: object
    outermost: list
    complete: bool


def kept(path):
    """Closed, whole, and nothing beside it."""
    with api.open(path) as dump:
        assert not dump.recovered
        dump.verify()
        for entry in dump.entries:
            entry.raw()
        outermost = [call.last for call in dump.calls if call.layer == ""]
        found = Kept(len(dump.entries), dump.header.get("steps"), outermost, dump.complete)
    assert not [one.name for one in path.parent.iterdir() if one.name.startswith(f"{path.name}.")]
    return found


@pytest.fixture
def nets(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.parametrize("door", ["factory", "script"])
def test_the_users_error_comes_through_and_the_dump_is_closed(nets, warm, door):
    target, code = ("net.py:build", 2) if door == "factory" else ("script.py", 1)
    seen = set()
    for limit in LIMITS:
        path = nets / f"{limit}.h5"
        done = warm("capture", "-o", path, target, env={"LIMIT": str(limit), "RAISES": "1"})
        full = "The disk is full" in done.stderr
        found = kept(path)
        if "reached" in done.stdout:
            assert done.returncode == code, done.stderr
            assert "ValueError: mine" in done.stderr
            assert (found.steps, found.complete) == (0, False)
            assert found.outermost == ([None] if found.records >= WEIGHTS else [])  # the net itself never came back
        else:  # the factory door ends when even the weights have no room
            assert door == "factory"
            assert full
            assert done.returncode == 3
        assert not full or f"the {found.records} records captured so far are readable" in done.stderr
        seen.add((full, "reached" in done.stdout))
    assert (True, True) in seen
    assert (False, True) in seen


def test_without_an_error_of_the_user_a_full_disk_ends_the_command(nets, warm):
    done = warm("capture", "-o", "x.h5", "script.py", env={"LIMIT": "160"})
    assert "reached" in done.stdout
    assert done.returncode == 3
    assert f"the {kept(nets / 'x.h5').records} records captured so far are readable" in done.stderr


def test_weights_that_were_stored_before_the_disk_was_full_are_kept(nets, warm):
    """Although the net ran unseen: the error has said that they can be read."""
    done = warm("capture", "-o", "x.h5", "script.py", env={"LIMIT": "90"})
    assert done.returncode == 3
    found = kept(nets / "x.h5")
    assert found.records > 0
    assert f"the {found.records} records captured so far are readable" in done.stderr


@pytest.fixture
def net():
    """A net whose dump takes about 150 KiB."""
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))


X = torch.ones(64, 64)


def notes(error, capsys):
    return "".join(getattr(error, "__notes__", [])) or capsys.readouterr().err


@pytest.mark.parametrize("limit", [85, 120, 140])
def test_what_comes_out_of_a_block_is_the_users_error(tmp_path, net, limit, capsys):
    path = tmp_path / "x.h5"

    def block():
        with api.capture(net, path):
            net(X)
            raise ValueError("mine")

    with limited(limit), pytest.raises((ValueError, errors.DumpError)) as caught:
        block()
    found = kept(path)
    said = f"the {found.records} records captured so far are readable"
    if isinstance(caught.value, errors.DumpError):
        assert limit == 85, "the block has begun"
        assert said in str(caught.value)
    else:
        assert str(caught.value) == "mine"
        assert said in notes(caught.value, capsys)


@pytest.mark.parametrize("leaving", [SystemExit(7), KeyboardInterrupt()], ids=["exit", "Ctrl-C"])
def test_leaving_a_block_stays_leaving(tmp_path, net, leaving, capsys):
    """Nobody shows the notes of these."""

    def block():
        with limited(130), api.capture(net, tmp_path / "x.h5"):
            net(X)
            raise leaving

    with pytest.raises(type(leaving)) as caught:
        block()
    assert caught.value is leaving
    assert "The disk is full" in capsys.readouterr().err


def test_what_comes_out_of_a_replayed_capture_is_the_users_error(tmp_path, net, capsys):
    with api.capture(net, tmp_path / "ref.h5"):
        net(X)

    def block():
        with api.replay(tmp_path / "ref.h5", net) as replay, limited(130), replay.capture(tmp_path / "x.h5"):
            replay.run()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        block()
    assert f"the {kept(tmp_path / 'x.h5').records} records" in notes(caught.value, capsys)


def run_limited(replay, path, limit):
    """The error that it ends with."""
    try:
        with limited(limit), replay.capture(path, force=True):
            replay.run()
    except errors.DumpError as error:
        return error
    return None


def test_a_disk_that_is_full_in_the_forced_pass_costs_nothing_of_the_free_run(tmp_path, net):
    """And is not taken for an error of the port's, which is then held to less of the reference."""
    with api.capture(net, tmp_path / "ref.h5"):
        net(X)
    path = tmp_path / "x.h5"
    with api.replay(tmp_path / "ref.h5", net) as replay:
        with torch.no_grad():
            net[1].weight += 1  # so that there is something to write in the forced pass
        with replay.capture(tmp_path / "free.h5", forced=False):
            replay.run()
        with replay.capture(tmp_path / "whole.h5"):
            replay.run()
        free, whole = (kept(tmp_path / name).records for name in ("free.h5", "whole.h5"))
        told = set()
        for limit in range(140, 320, 4):
            trouble = run_limited(replay, path, limit)
            found = kept(path)
            if trouble is None:
                assert found.records == whole
                break
            told.add(found.records)
            assert f"the {found.records} records" in str(trouble)
            assert found.complete is (found.records >= free)
        assert max(told) >= free


def test_a_disk_that_is_full_behind_a_reference_is_no_error_of_the_net(tmp_path, monkeypatch, nets, capsys):
    """Of what is measured then: the net's own rounding."""

    finding = DumpWriter.finding

    def full(self, kind, facts):
        if kind == EXPECTED:
            raise errors.DumpError("dump-disk-full", path="x.h5", captured=3, reason="full")
        finding(self, kind, facts)

    monkeypatch.setattr(DumpWriter, "finding", full)
    assert cli.main(["capture", f"{nets}/net.py:build", "-o", str(tmp_path / "x.h5"), "--truth"]) == 3
    assert "The disk is full" in capsys.readouterr().err
    with api.open(tmp_path / "x.h5") as dump:
        assert [note.message for note in dump.notes] == []


# --- Whatever goes wrong while a dump is closed.


def broken(error):
    def raising(*_, **__):
        raise error

    return raising


TROUBLE = [OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "quota"), OSError(errno.EIO, "disk"), MemoryError(),
           RuntimeError("a mistake of ours")]  # fmt: skip


@pytest.mark.parametrize("trouble", TROUBLE, ids=lambda error: f"{type(error).__name__} {error.args[:1]}")
@pytest.mark.parametrize("owner", [None, ValueError("mine")], ids=["", "own"])
def test_a_dump_that_cannot_be_closed_is_readable_and_hides_no_error(
    tmp_path, net, monkeypatch, capsys, trouble, owner
):
    path = tmp_path / "x.h5"

    def block():
        with api.capture(net, path):
            net(X)
            if owner is not None:
                raise owner

    with monkeypatch.context() as patch:
        patch.setattr(closing, "close", broken(trouble))
        with pytest.raises(Exception) as caught:
            block()
    if owner is not None:
        assert caught.value is owner
        assert "aligner: error: " in notes(owner, capsys)
    elif isinstance(trouble, RuntimeError):
        assert caught.value is trouble
    else:
        assert isinstance(caught.value, errors.DumpError)
    with api.open(path) as dump:
        assert dump.recovered
        assert len(dump.entries) > 10
        assert [note.message for note in dump.notes] == []  # nobody writes it any more
        for entry in dump.entries:
            entry.raw()


@pytest.mark.parametrize("broken_part", ["cautions", "hook", "journal", "finding"])
def test_no_part_of_the_ending_stops_the_closing(tmp_path, net, monkeypatch, capsys, broken_part):
    path, own = tmp_path / "x.h5", ValueError("mine")

    def block():
        with api.capture(net, path) as capture:
            net(X)
            trouble = broken(RuntimeError("a mistake of ours"))
            if broken_part == "cautions":
                monkeypatch.setattr(capture._adapter, "cautions", trouble, raising=False)
            elif broken_part == "finding":
                monkeypatch.setattr(capture._computed, "tell", trouble)
            elif broken_part == "journal":
                monkeypatch.setattr(Journal, "remove", broken(OSError(errno.EACCES, "no")))
            else:
                capture._handles.append(type("Handle", (), {"remove": trouble})())
            raise own

    with pytest.raises(ValueError) as caught:
        block()
    monkeypatch.undo()
    assert caught.value is own
    assert ("a mistake of ours" in notes(own, capsys)) is (broken_part != "journal")
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in net.modules())
    if broken_part == "journal":
        (tmp_path / "x.h5.journal").unlink()
    found = kept(path)
    assert found.steps == 1


def test_a_file_system_that_tells_only_at_the_end_that_it_is_full(tmp_path, net, monkeypatch):
    """As NFS does."""
    close = DataFile.close

    def late(self):
        was_open = self._descriptor >= 0
        close(self)
        if was_open:
            raise OSError(errno.EDQUOT, "quota")

    monkeypatch.setattr(DataFile, "close", late)
    with pytest.raises(errors.DumpError, match="disk is full"), api.capture(net, tmp_path / "x.h5"):
        net(X)
    assert (tmp_path / "x.h5.journal").exists()


BREAKS_AND_LEAVES = """
import sys
from net import build
from aligner.dump import closing
def close(*_):
    raise {trouble}
closing.close = close
net, x = build()
net(x)
{end}
"""


@pytest.mark.parametrize("trouble", ["OSError(28, 'full')", "RuntimeError('a mistake of ours')"])
@pytest.mark.parametrize(("end", "code"), [("sys.exit(7)", 7), ("raise ValueError('mine')", 1)])
def test_a_script_keeps_its_exit_code_whatever_becomes_of_its_dump(nets, warm, trouble, end, code):
    (nets / "breaks.py").write_text(BREAKS_AND_LEAVES.format(trouble=trouble, end=end))
    done = warm("capture", "-o", "x.h5", "breaks.py")
    assert done.returncode == code, done.stderr
    assert "aligner: error: " in done.stderr
    assert ("ValueError: mine" in done.stderr) is (code == 1)
    with api.open(nets / "x.h5") as dump:
        assert dump.recovered
        assert len(dump.entries) > 10


def test_an_import_on_a_full_disk_keeps_what_it_says(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ALIGNER_LANG", "en")
    small(tmp_path / "ms", 3)
    counts = set()
    for limit in range(50, 70, 2):
        path = tmp_path / f"{limit}.h5"
        with limited(limit):
            code = cli.main(["import", str(tmp_path / "ms"), "-o", str(path)])
        said = capsys.readouterr().err
        if code == 0:
            break
        assert code == 3
        if path.exists():
            found = kept(path)
            assert f"the {found.records} records captured so far are readable" in said
            counts.add(found.records)
    assert max(counts) > 0


def test_an_import_that_fails_leaves_no_dump(tmp_path, capsys, monkeypatch):
    from aligner.ingest import importing

    small(tmp_path / "ms")
    monkeypatch.setattr(importing, "run", broken(errors.IngestError("ingest-options")))
    assert cli.main(["import", str(tmp_path / "ms"), "-o", str(tmp_path / "x.h5")]) == 2
    assert [one.name for one in tmp_path.iterdir()] == ["ms"]
