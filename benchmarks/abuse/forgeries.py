"""Ways to spoil a dump. Each takes a random generator and a good side, and gives the bytes of a dump and its journal.

Damage: bits flipped, parts cut, zeroed, doubled, swapped. Forgery: the sections or the journal's lines say something
else, and every checksum fits.
"""

from __future__ import annotations

import copy
import json
import math
import random
import zlib
from collections.abc import Callable
from typing import Any, Optional

from subjects import Side

from aligner.dump import userblock
from aligner.dump.userblock import Section, UserBlock

Spoiled = tuple[bytes, Optional[bytes]]
"""A dump, and its journal if it was never closed."""

START, TOP = 512, 608

SHELL = "ms.runtime.thread_bind_core.subprocess.Popen('touch pwned', shell=True)"
ATTACKS = (
    SHELL,
    "torch.utils.collect_env.subprocess.Popen('touch pwned', shell=True)",
    "torch.ctypes.CDLL('x.so')",
    "nn.Linear(open('pwned', 'w'), 1)",
    "nn.GELU(\n)\nopen('pwned', 'w')",
    "nn.GELU() # \n",
    "nn.Sequential(*map(print, 'x'))",
    "nn.GELU(approximate=f'{open(1)}')",
    "nn.GELU((x := 1))",
    "(lambda: nn.GELU())()",
    "[nn.GELU() for nn in (1,)]",
    "nn.GELU().__class__()",
    "ｎｎ.GELU()",
    "nn.GELU('''\"\"\"\n''')",
    "nn.GELU(" * 40,
    "nn.Linear(1, 1, 9" + "9" * 4000 + ")",
)
NAMES = (
    "",
    "../../x",
    "/etc/passwd",
    "层" * 120,
    "x" * 5000,
    'a"""\nimport os\n"""',
    "a\x1b[31m",
    "\u202ex",
    "$(touch pwned)",
    "-c",
    "a.b." * 200,
    "file",
    "__class__",
    "class",
    "\ud800",
    "\0",
)
NUMBERS = (0, 1, -1, 2, 255, 1 << 31, 1 << 62, 1 << 63, -(1 << 63), 10**30, -(10**400), 0.5, -0.0, 1e308, 5e-324)
NUMBERS += (math.nan, math.inf, -math.inf)


def odd(rng: random.Random) -> Any:
    """Something that may stand anywhere in JSON."""
    return rng.choice(
        [
            lambda: None,
            lambda: rng.random() < 0.5,
            lambda: rng.choice(NUMBERS),
            lambda: rng.choice(NUMBERS),
            lambda: rng.choice(NAMES),
            lambda: rng.choice(ATTACKS),
            lambda: nested(rng, rng.choice([1, 3, 30, 98, 120])),
            list,
            dict,
            lambda: [[]],
            lambda: [rng.choice(NUMBERS) for _ in range(rng.randrange(1, 6))],
            lambda: {rng.choice(NAMES): rng.choice(NUMBERS)},
            lambda: [rng.choice(NAMES) for _ in range(rng.randrange(1, 6))],
        ]
    )()


def nested(rng: random.Random, depth: int) -> Any:
    """Lists and mappings in each other."""
    value: Any = rng.choice([1, "x", None])
    for _ in range(depth):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key in a JSON value."""
    found, waiting = [], [value]
    while waiting:
        inside = waiting.pop()
        keys = list(inside) if isinstance(inside, dict) else range(len(inside))
        for key in keys:
            found.append((inside, key))
            if isinstance(inside[key], (dict, list)):
                waiting.append(inside[key])
    return found


def spoil(rng: random.Random, value: Any) -> Any:
    """The value with one to three things in it changed."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        there = places(value)
        if not there:
            return odd(rng)
        inside, key = rng.choice(there)
        what = rng.randrange(8)
        if what == 0:
            inside.pop(key)
        elif what == 1 and isinstance(inside, list):
            inside.insert(rng.randrange(len(inside) + 1), copy.deepcopy(inside[key]))
        elif what == 2:
            other, place = rng.choice(there)
            taken = copy.deepcopy(other[place])
            inside[key] = taken
        elif what == 3 and isinstance(inside[key], (int, float)):
            inside[key] = inside[key] + rng.choice([-1, 1, 8, -8])
        elif what == 4 and isinstance(inside, dict):
            inside[str(rng.choice(NAMES))] = inside.pop(key)
        else:
            inside[key] = odd(rng)
    return value


def to_json(value: Any) -> bytes:
    """JSON as a forger writes it, half letters included."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def sealed(side: Side, sections: dict[str, bytes], data: Optional[bytes] = None) -> bytes:
    """A closed dump with these sections in which every checksum fits."""
    out = bytearray(side.data if data is None else data)
    start = len(out)
    where = {}
    for name, body in sections.items():
        where[name] = Section(len(out), len(body), zlib.crc32(body))
        out += body
    seal = Section(start, len(out) - start, zlib.crc32(out[start:], zlib.crc32(out[START:TOP])))
    out[:START] = userblock.encode(UserBlock(side.token, True, len(out), where, seal))
    return bytes(out)


def changed(side: Side, name: str, change: Callable[[Any], Any]) -> bytes:
    """A closed dump with one section changed."""
    sections = dict(side.sections)
    sections[name] = to_json(change(json.loads(sections.get(name, b"[]"))))
    return sealed(side, sections)


def forged_section(name: str) -> Callable[[random.Random, Side], Spoiled]:
    def forge(rng: random.Random, side: Side) -> Spoiled:
        return changed(side, name, lambda value: spoil(rng, value)), None

    return forge


def forged_notes(rng: random.Random, side: Side) -> Spoiled:
    """Notes stand in the index."""

    def change(index: Any) -> Any:
        note = rng.choice(
            [["act", "dump-changed", {"path": "x"}], ["", odd(rng), {}], ["", "dump-bad", {"path": odd(rng)}]]
        )
        index["notes"] = spoil(rng, [*index["notes"], note])
        return index

    return changed(side, "index", change), None


def deep(rng: random.Random, side: Side) -> Spoiled:
    """Nested as deep as Python's own parser takes it."""
    name = rng.choice(["header", "index", "layers", "calls", "findings"])
    value = json.loads(side.sections.get(name, b"[]"))
    there = [(inside, key) for inside, key in places(value) if not isinstance(inside[key], int)]
    inside, key = rng.choice(there)
    inside[key] = "DEEP"
    depth = rng.choice([90, 190, 210, 400, 500, 700, 900, 960, 980, 5000, 200_000])
    ends = rng.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"":', b"}]")])
    text = to_json(value).replace(b'"DEEP"', ends[0] * depth + b"1" + ends[1] * depth)
    return sealed(side, {**side.sections, name: text}), None


def odd_calls(rng: random.Random, side: Side) -> Spoiled:
    """Calls that end before they begin, cross each other, begin together, stand in themselves."""

    def change(calls: Any) -> Any:
        columns = calls["calls"]
        for at in range(len(columns["first"])):
            if rng.random() < 0.5:
                first, last = columns["first"][at], columns["last"][at]
                pick = [(last, first), (first, first - 5), (0, 10**6), (5, 5), (last, last), (-3, -2), (10**18, 0)]
                columns["first"][at], columns["last"][at] = rng.choice(pick)
            if rng.random() < 0.2:
                columns["layer"][at] = rng.randrange(len(calls["tables"]["layer"]))
            if rng.random() < 0.2:
                columns["number"][at] = rng.choice([0, 1, 7, -1])
            if rng.random() < 0.1:
                columns["step"][at] = rng.choice([0, 1, -1, 10**9])
        return calls

    return changed(side, "calls", change), None


def cycles(rng: random.Random, side: Side) -> Spoiled:
    """Layers in themselves, a mapping in a circle, calls whose parent they are."""
    if rng.random() < 0.5:
        paths = list(side.layers)
        rng.shuffle(paths)
        circle = [[a, b, 1.0] for a, b in zip(side.layers, paths)]
        return changed(side, "header", lambda header: {**header, "mapping": circle * rng.choice([1, 2, 50])}), None

    def change(calls: Any) -> Any:
        size = len(calls["calls"]["first"])
        calls["calls"]["first"] = [1] * size
        calls["calls"]["last"] = [rng.choice([1, 10**6]) for _ in range(size)]
        calls["calls"]["layer"] = [rng.choice([0, size - 1]) % len(calls["tables"]["layer"]) for _ in range(size)]
        return calls

    return changed(side, "calls", change), None


def duplicates(rng: random.Random, side: Side) -> Spoiled:
    """The same record, layer, call or finding again and again."""
    name = rng.choice(["index", "layers", "calls", "findings"])
    times = rng.choice([2, 10, 200])

    def change(value: Any) -> Any:
        if isinstance(value, list):
            at = rng.randrange(len(value))
            return [*value, *[value[at]] * times]
        columns = value["records" if name == "index" else "calls"]
        size = len(columns["step"])
        at = rng.randrange(size)
        for word, column in columns.items():
            more = [column[at]] * times
            column += range(10**6, 10**6 + times) if word == "order" else more
        if rng.random() < 0.5 and name == "index":
            columns["slot"] = [0] * len(columns["slot"])
        return value

    return changed(side, name, change), None


def many(rng: random.Random, side: Side) -> Spoiled:
    """Far more of something than a net of this size has; of records, all on the same bytes."""
    count = rng.choice([2_000, 5_000])
    sections = {name: json.loads(text) for name, text in side.sections.items()}
    records, tables = sections["index"]["records"], sections["index"]["tables"]
    what = rng.choice(["records", "records and calls", "layers", "calls", "findings", "notes"])
    if "records" in what:
        size = len(records["step"])
        at = max(range(size), key=lambda row: records["size"][row])
        for word, column in records.items():
            more = {"order": range(10**6, 10**6 + count), "call": range(count)}
            column += more.get(word, [column[at]] * count)
        if rng.random() < 0.3:
            tables["layer"] += [f"l{n}" for n in range(count)]
            records["layer"][size:] = range(len(tables["layer"]) - count, len(tables["layer"]))
    if "calls" in what:
        columns = sections["calls"]["calls"]
        for word, column in columns.items():
            shift = rng.choice([0, 1, 10])
            more = {"number": range(count), "first": range(10**6, 10**6 + shift * count + 1, shift or 10**9)}
            column += [*more.get(word, ()), *[column[0]] * count][:count]
    for word in ("layers", "findings"):
        if what == word and sections.get(word):
            item = rng.choice(sections[word])
            sections[word] += [[f"x{n}", *item[1:]] if word == "layers" else item for n in range(count)]
    if what == "notes":
        sections["index"]["notes"] += [["act", "dump-changed", {"path": "x"}]] * count
    return sealed(side, {name: to_json(value) for name, value in sections.items()}), None


def attack(rng: random.Random, side: Side) -> Spoiled:
    """Code and names for the program that --repro writes, and for the terminal."""
    sections = {name: json.loads(text) for name, text in side.sections.items()}
    for kind, facts in sections.get("findings", []):
        if kind == "layer":
            facts["python"] = rng.choice(ATTACKS)
            facts["reason"] = rng.choice(NAMES)
    text = json.dumps(sections)
    for name in rng.sample(side.layers[1:], min(2, len(side.layers) - 1)):
        evil = rng.choice([name for name in NAMES if name.isprintable()])
        text = text.replace(json.dumps(name), json.dumps(evil))
    if rng.random() < 0.5:
        text = text.replace(rng.choice(['"input.0"', '"output.0"', '"by"']), json.dumps(rng.choice(NAMES)))
    sections = json.loads(text)
    return sealed(side, {name: to_json(value) for name, value in sections.items()}), None


def other_numbers(rng: random.Random, side: Side) -> Spoiled:
    """Values that are random bits; the checksums of some fit."""
    data = bytearray(side.data)
    for _ in range(rng.choice([1, 5, 50])):
        at = rng.randrange(TOP, len(data) - 8)
        data[at : at + 8] = rng.choice([bytes(8), b"\xff" * 8, b"\0\0\x80\x7f" * 2, rng.randbytes(8)])
    return sealed(side, side.sections, bytes(data)), None


def odd_block(rng: random.Random, side: Side) -> Spoiled:
    """The first 512 bytes say something else."""
    content = json.loads(side.closed[:START].split(b"\n")[1])
    text = to_json(spoil(rng, content) if rng.random() < 0.8 else odd(rng))
    if rng.random() < 0.1:
        text = b"[" * rng.choice([200, 380])
    first = side.closed[:START].split(b"\n")[0]
    block = (first + rng.choice([b"\n", b"\n", b"\n", b"\r", b" "]) + text)[: START - 16]
    block = block.ljust(START - 16) + b"\n"
    return block + b"crc32 %08x\n" % zlib.crc32(block) + side.closed[START:], None


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Bytes as a bad disk, cable or editor leaves them."""
    out = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(min(len(out), START)) if rng.random() < 0.2 else rng.randrange(len(out))
        size, to = rng.randrange(1, 3000), rng.randrange(len(out))
        what = rng.choice(["flip", "flip", "flip", "zero", "cut", "remove", "double", "swap", "noise"])
        if what == "flip":
            out[at] ^= 1 << rng.randrange(8)
        elif what == "zero":
            out[at : at + size] = bytes(len(out[at : at + size]))
        elif what == "cut":
            del out[at:]
        elif what == "remove":
            del out[at : at + size]
        elif what == "double":
            out[at:at] = out[at : at + size]
        elif what == "swap":
            size = min(size, len(out) - max(at, to))
            out[at : at + size], out[to : to + size] = out[to : to + size], out[at : at + size]
        else:
            out[at : at + size] = rng.randbytes(len(out[at : at + size]))
        if not out:
            break
    return bytes(out)


def damage(rng: random.Random, side: Side) -> Spoiled:
    return damaged(rng, side.closed), None


def damage_open(rng: random.Random, side: Side) -> Spoiled:
    """A capture that was killed, and then its file or its journal was damaged."""
    if rng.random() < 0.3:
        return damaged(rng, side.open), side.journal
    return side.open, damaged(rng, side.journal)


def line(content: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(content), content)


def journal_lines(rng: random.Random, side: Side) -> Spoiled:
    """Lines out of order, missing, doubled, torn."""
    lines = side.journal.splitlines(keepends=True)
    for _ in range(rng.choice([1, 3, 30])):
        at = rng.randrange(len(lines))
        what = rng.randrange(4)
        if what == 0 and len(lines) > 1:
            lines.pop(at)
        elif what == 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        elif what == 2:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        else:
            lines[-1] = lines[-1][: rng.randrange(len(lines[-1]) + 1)]
    return side.open, b"".join(lines)


def journal_forged(rng: random.Random, side: Side) -> Spoiled:
    """Lines that say something else, with checksums that fit."""
    lines = side.journal.splitlines()
    for _ in range(rng.choice([1, 1, 3, 20])):
        at = rng.randrange(len(lines)) if rng.random() < 0.1 else rng.randrange(1, len(lines))
        item = json.loads(lines[at].partition(b" ")[2])
        if rng.random() < 0.1:
            depth = rng.choice([98, 210, 500, 900, 980])
            content = to_json(item)[:-1] + b"," + b"[" * depth + b"]" * depth + b"]"
        else:
            content = to_json(spoil(rng, item))
        lines[at] = line(content)[:-1]
    return side.open, b"\n".join(lines) + b"\n"


def journal_many(rng: random.Random, side: Side) -> Spoiled:
    """Thousands of records on the same bytes, or of calls, told by a journal."""
    told = [json.loads(text.partition(b" ")[2]) for text in side.journal.splitlines()]
    item = rng.choice([one for one in told if one[0] in ("record", "call", "layer", "finding", "note")])
    more = []
    for n in range(rng.choice([500, 3000])):
        again = list(item)
        if again[0] == "record":
            again[4], again[6] = n, 10**6 + n
        elif again[0] == "call":
            again[4], again[5], again[6] = n, 10**6 + n, 10**6 + rng.choice([0, n, 10**5])
        more.append(line(to_json(again)))
    return side.open, side.journal + b"".join(more)


KINDS: dict[str, tuple[int, Callable[[random.Random, Side], Spoiled]]] = {
    "bits, cuts, swaps": (4, damage),
    "first 512 bytes": (1, odd_block),
    "values": (1, other_numbers),
    "header": (2, forged_section("header")),
    "index": (3, forged_section("index")),
    "layers": (2, forged_section("layers")),
    "calls": (3, forged_section("calls")),
    "findings": (4, forged_section("findings")),
    "notes": (1, forged_notes),
    "deep nesting": (2, deep),
    "calls in no order": (2, odd_calls),
    "circles": (1, cycles),
    "duplicates": (1, duplicates),
    "very many": (1, many),
    "code and names": (3, attack),
    "journal: bits, cuts": (2, damage_open),
    "journal: lines": (1, journal_lines),
    "journal: forged": (3, journal_forged),
    "journal: very many": (1, journal_many),
}
"""What is done, and how often beside the others."""
