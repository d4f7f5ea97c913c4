"""A table of numbers in JSON, read without making a Python object of each: most of an index is such a table.

A list of whole numbers in JSON is also what numpy reads as text, five times as fast and in a fifth of the memory. Where
the table is written in another way, as JSON may be, Python's parser reads it like the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.dump.sections import from_json

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]
else:
    Numbers = Any

_LONGEST = 40  # bytes of a column's name


def from_json_with(table: str, data: bytes) -> Any:
    """The JSON object; the columns of the `table` in it are arrays where they are plain lists of whole numbers.

    Raises:
        ValueError: it is no JSON, or nested too deep.
    """
    mark = b'"%s":{' % table.encode("ascii")
    start = data.find(mark)
    found = _columns(data, start + len(mark)) if start >= 0 else None
    if found is not None:
        columns, end = found
        value = from_json(b'%s"%s":null%s' % (data[:start], table.encode("ascii"), data[end:]))
        if isinstance(value, dict) and value.get(table, 0) is None:  # else it stood inside something else
            value[table] = columns
            return value
    return from_json(data)


def _columns(data: bytes, at: int) -> Optional[tuple[dict[str, Numbers], int]]:
    """The columns that begin here, and where the table ends; None if anything is not as it is usually written."""
    found: dict[str, Numbers] = {}
    while data[at : at + 1] == b'"':
        name = data.find(b'":[', at, at + _LONGEST)
        end = data.find(b"]", name)
        plain = 0 <= name < end and data[at + 1 : name].isalpha()
        numbers = _numbers(data[name + 3 : end]) if plain else None
        if numbers is None:
            return None
        found[data[at + 1 : name].decode("ascii")] = numbers
        if data[end + 1 : end + 2] == b"}":
            return found, end + 2
        at = end + 2 if data[end + 1 : end + 2] == b"," else end
    return None


def _numbers(text: bytes) -> Optional[Numbers]:
    if not text:
        return np.zeros(0, np.int64)
    if text.translate(None, b"0123456789,") or b",," in text or b"," in (text[:1], text[-1:]):
        return None  # numpy would read it as far as it can
    return np.fromstring(text, np.int64, sep=",")  # what is too large becomes the largest there is
