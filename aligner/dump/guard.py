"""Says what is hostile in an HDF5 file that is not, or no longer, as aligner wrote it.

The reader never asks HDF5, so none of this can do harm; the guard is there to name what was found. Because a
malformed file may crash the HDF5 library, it looks in a process of its own, with little memory and little time,
with the search for filter plugins switched off, and at metadata only: no data are read, and only hard links are
followed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Optional

from aligner.dump import names
from aligner.errors import DumpError

SECONDS = 10
MEMORY = 4 << 30
_MAX_OBJECTS = 500_000
_MAX_DEPTH = 8
_MAX_BYTES = 1 << 40
_MAX_ATTRIBUTES = 64
_MAX_ATTRIBUTE = 1 << 16
_SLACK = 1 << 16  # bytes a dataset may declare beyond what is stored: small ones compress to nothing
_FILTERS = frozenset({1, 2, 3, 4, 5, 6, 32000})  # deflate, shuffle, fletcher32, szip, nbit, scaleoffset, lzf

_PROGRAM = """
import sys
path, root, *more = sys.argv[1:]
sys.path[:0] = [root]
sys.path += more
from aligner.dump.guard import main
main(path)
"""


class Finding(NamedTuple):
    """An id of aligner.messages and its facts."""

    what: str
    facts: Mapping[str, Any]


class _Found(Exception):
    """What was found, on its way up."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


def refusal(path: Path, found: Finding) -> DumpError:
    """The error that tells of a finding."""
    return DumpError(found.what, path=path, **found.facts)


def inspect(path: Path) -> Optional[Finding]:
    """Look at the file in another process; None if nothing in it is hostile."""
    root = str(Path(__file__).resolve().parents[2])
    more = [place for place in sys.path if os.path.isabs(place)]  # packages may stand where only this process looks
    environment = {**os.environ, "HDF5_PLUGIN_PATH": os.devnull, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-I", "-c", _PROGRAM, os.fspath(path.absolute()), root, *more]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finding("guard-slow", {"seconds": SECONDS})
    except OSError:  # no interpreter to start: the file is refused all the same, only without a reason
        return None
    try:
        answer = json.loads(done.stdout)
        return Finding(answer[0], answer[1]) if answer else None
    except (ValueError, IndexError, KeyError):
        return Finding("guard-crash", {"status": done.returncode})


def main(path: str) -> None:
    """The other process: print what was found as JSON."""
    _limit()
    finding: Optional[Finding] = None
    try:
        _walk(path)
    except _Found as found:
        finding = found.finding
    except MemoryError:
        finding = Finding("guard-memory", {"gigabytes": MEMORY >> 30})
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:  # whatever HDF5 makes of bad metadata
        finding = Finding("guard-malformed", {"reason": _shown(str(error.args[0] if len(error.args) == 1 else error))})
    sys.stdout.write(json.dumps(finding))


def _limit() -> None:
    try:
        import resource
    except ImportError:  # not POSIX
        return
    for kind, wanted in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_CORE, 0)):
        _, most = resource.getrlimit(kind)
        resource.setrlimit(kind, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def _shown(text: str) -> str:
    return names.plain(text)[:120]


def _refuse(what: str, **facts: object) -> NoReturn:
    raise _Found(Finding(what, facts))


def _walk(path: str) -> None:
    """Go through all objects, groups before what stands in them."""
    import h5py
    from h5py import h5f, h5g, h5o

    size = os.path.getsize(path)
    root = h5g.open(h5f.open(os.fsencode(path), h5f.ACC_RDONLY), b"/")
    seen = {_address(h5o.get_info(root))}
    _check_attributes(root, "/")
    waiting = [(root, "", 0)]
    count = 0
    while waiting:
        group, above, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            _refuse("guard-deep", name=_shown(above), limit=_MAX_DEPTH)
        for name in _children(group, above):
            count += 1
            if count > _MAX_OBJECTS:
                _refuse("guard-many", limit=_MAX_OBJECTS)
            inside = h5o.open(group, name)
            shown = f"{above}/{name.decode('utf-8', 'replace')}"
            if isinstance(inside, h5py.h5d.DatasetID):
                _check_dataset(inside, _shown(shown), size)
            elif not isinstance(inside, h5g.GroupID):
                _refuse("guard-type", name=_shown(shown), kind="H5O_TYPE_NAMED_DATATYPE")
            elif _address(h5o.get_info(inside)) in seen:
                _refuse("guard-cycle", name=_shown(shown))
            else:
                seen.add(_address(h5o.get_info(inside)))
                waiting.append((inside, shown, depth + 1))
            _check_attributes(inside, _shown(shown))


def _address(info: Any) -> Any:
    """What tells one object from another: a token since HDF5 1.12, an address before."""
    return (info.fileno, getattr(info, "addr", None) or getattr(info, "token", None) or getattr(info, "objno", None))


def _children(group: Any, above: str) -> Iterator[bytes]:
    """The names in a group, after a look at each name and link."""
    from h5py import h5l

    for name in group:
        text = name.decode("utf-8", "replace")
        shown = _shown(f"{above}/{text}")
        if not names.is_plain(text) or text in (".", ".."):
            _refuse("guard-name", name=shown)
        link = group.links.get_info(name).type
        if link == h5l.TYPE_EXTERNAL:
            target = group.links.get_val(name)[0].decode("utf-8", "replace")
            _refuse("guard-external-link", name=shown, target=_shown(target))
        if link == h5l.TYPE_SOFT:
            _refuse("guard-soft-link", name=shown, target=_shown(group.links.get_val(name).decode("utf-8", "replace")))
        if link != h5l.TYPE_HARD:
            _refuse("guard-other-link", name=shown)
        yield name


def _check_dataset(dataset: Any, shown: str, size: int) -> None:
    """Layout, type, size and filters of a dataset."""
    from h5py import h5d, h5s

    created = dataset.get_create_plist()
    layout = created.get_layout()
    if layout == h5d.VIRTUAL:
        _refuse("guard-virtual", name=shown)
    if created.get_external_count():
        target = created.get_external(0)[0].decode("utf-8", "replace")
        _refuse("guard-external-storage", name=shown, target=_shown(target))
    _check_type(dataset.get_type(), shown)
    space = dataset.get_space()
    elements = 0 if space.get_simple_extent_type() == h5s.NULL else space.get_simple_extent_npoints()
    declared = elements * dataset.get_type().get_size()
    if declared > _MAX_BYTES:
        _refuse("guard-huge", name=shown, bytes=declared, size=size)
    for i in range(created.get_nfilters()):
        number = created.get_filter(i)[0]
        if number not in _FILTERS:
            _refuse("guard-filter", name=shown, filter=number)
    if declared > max(_SLACK, 2 * dataset.get_storage_size()) and declared > size:
        _refuse("guard-bomb", name=shown, bytes=declared, size=size)
    if layout == h5d.CONTIGUOUS and declared:
        offset = dataset.get_offset()
        if offset is None or offset + declared > size:
            _refuse("guard-outside", name=shown, bytes=declared, size=size)


def _check_type(datatype: Any, shown: str) -> None:
    """Numbers, booleans, complex numbers and texts of fixed length; nothing that leads elsewhere."""
    from h5py import h5t

    kind = datatype.get_class()
    if kind in (h5t.INTEGER, h5t.FLOAT, h5t.ENUM) and datatype.get_size() <= 16:
        return
    if kind == h5t.STRING and not datatype.is_variable_str():
        return
    if kind == h5t.COMPOUND and datatype.get_nmembers() == 2 and datatype.get_size() <= 32:
        members = [datatype.get_member_type(i).get_class() for i in range(2)]
        if members == [h5t.FLOAT, h5t.FLOAT]:
            return
    words = {
        h5t.STRING: "H5T_STRING (H5T_VARIABLE)",
        h5t.VLEN: "H5T_VLEN",
        h5t.REFERENCE: "H5T_REFERENCE",
        h5t.COMPOUND: "H5T_COMPOUND",
        h5t.OPAQUE: "H5T_OPAQUE",
        h5t.ARRAY: "H5T_ARRAY",
        h5t.BITFIELD: "H5T_BITFIELD",
        h5t.TIME: "H5T_TIME",
    }
    _refuse("guard-type", name=shown, kind=words.get(kind, f"H5T_class_t({kind})"))


def _check_attributes(thing: Any, shown: str) -> None:
    """Attributes are read when an object is looked at: few and small ones only."""
    from h5py import h5a

    count = h5a.get_num_attrs(thing)
    if count > _MAX_ATTRIBUTES:
        _refuse("guard-attributes", name=shown, count=count, limit=_MAX_ATTRIBUTES)
    for i in range(count):
        attribute = h5a.open(thing, index=i)
        label = attribute.name.decode("utf-8", "replace")
        if not names.is_plain(label):
            _refuse("guard-name", name=_shown(f"{shown} @{label}"))
        taken = attribute.get_storage_size()
        if taken > _MAX_ATTRIBUTE:
            _refuse("guard-attribute", name=_shown(f"{shown} @{label}"), bytes=taken, limit=_MAX_ATTRIBUTE)
