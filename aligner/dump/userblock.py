"""The first 512 bytes of a dump: text a person can read with `head`, and all the reader needs to find the rest.

Line 1 says what the file is. Line 2 is JSON: the format, whether the dump was closed, and where its sections lie.
The last line is the CRC-32 of everything before it. HDF5 calls this place the user block and skips it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from aligner.dump.sections import code_of, demand
from aligner.errors import Reason, form_of

FORMAT = 1
SIZE = 512
MARK = b"aligner dump, format "
_LINE = "an HDF5 file behind this block of 512 bytes; any HDF5 viewer opens it"
_TAIL = 15  # "crc32 00000000\n"


@dataclass(frozen=True)
class Section:
    """A run of bytes and its CRC-32."""

    offset: int
    size: int
    crc: int


@dataclass(frozen=True)
class UserBlock:
    """What the block says; an open dump has only its token, which its journal shares."""

    token: str
    closed: bool
    size: int = 0
    sections: Mapping[str, Section] = field(default_factory=dict)
    seal: Section = Section(0, 0, 0)


def encode(block: UserBlock) -> bytes:
    """The 512 bytes."""
    content: dict[str, Any] = {"format": FORMAT, "state": "closed" if block.closed else "open", "token": block.token}
    if block.closed:
        places = {name: [s.offset, s.size, s.crc] for name, s in block.sections.items()}
        seal = [block.seal.offset, block.seal.size, block.seal.crc]
        content.update(size=block.size, sections=places, seal=seal)
    text = MARK + f"{FORMAT}: {_LINE}\n{json.dumps(content, separators=(',', ':'))}".encode("ascii")
    text = text.ljust(SIZE - _TAIL - 1) + b"\n"
    return text + b"crc32 %08x\n" % zlib.crc32(text)


def format_of(data: bytes) -> Optional[int]:
    """The format the block's first line names, 0 if it cannot be read; None if this is no dump at all."""
    if not data.startswith(MARK):
        return None
    digits = data[len(MARK) :].partition(b":")[0]
    return int(digits) if digits.isdigit() and len(digits) < 10 else 0


def decode(data: bytes) -> UserBlock:
    """The block of a dump of this format.

    Raises:
        Reason: it is damaged.
    """
    text, crc = data[: SIZE - _TAIL], data[SIZE - _TAIL : SIZE]
    if crc != b"crc32 %08x\n" % zlib.crc32(text):
        raise Reason("why-first-checksum")
    try:
        content = json.loads(text.split(b"\n")[1])
        found = content["format"]
        demand(found == format_of(data), "why-first-formats", format_of(data), code_of(found))
        if content["state"] == "open":
            return UserBlock(str(content["token"]), False)
        sections = {str(name): _section(place) for name, place in content["sections"].items()}
        block = UserBlock(str(content["token"]), True, _number(content["size"]), sections, _section(content["seal"]))
    except Reason:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Reason("why-first-form", form_of(error)) from error
    return block


def _section(place: object) -> Section:
    if not isinstance(place, list) or len(place) != 3:
        raise Reason("why-first-place")
    return Section(*map(_number, place))


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise Reason("why-first-number")
    return value
