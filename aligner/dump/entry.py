"""One record of a dump that is being read: what it is, and its values when somebody asks for them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.dtypes import DTYPES, decode
from aligner.dump.checksum import Checksum
from aligner.dump.data import PIECE
from aligner.dump.sections import VALUES
from aligner.errors import DumpError
from aligner.record import Array, Key, display

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

SAMPLED, RUNS = 1024, 16
"""Elements of a sample, and the runs of neighbours that it is read in where it is not all."""

_UNIT = 16  # pieces are a multiple of this: whole elements of every type, whole words of the checksum


@dataclass(frozen=True)
class Statistics:
    """What can be said of a record's values in a few numbers; of the finite ones, NaN if there are none."""

    minimum: float
    maximum: float
    mean: float
    rms: float
    nan: int
    inf: int
    count: int


class Entry:
    """A record: its address, type and shape at hand, its values read on demand and checked against their checksum.

    `content` is (dtype, nbytes, checksum): different for different contents but for one chance in four billion.
    """

    __slots__ = ("_dump", "_row")

    def __init__(self, dump: Dump, row: int) -> None:
        self._dump = dump
        self._row = row

    @property
    def key(self) -> Key:
        """Where the value stood in the run."""
        return self._dump._index.key(self._row)

    @property
    def order(self) -> int:
        """When it was captured: order numbers rise."""
        return self._dump._index.orders[self._row]

    @property
    def dtype(self) -> str:
        """The framework's word, a key of aligner.dtypes.DTYPES."""
        return self._dump._index.dtypes[self._row]

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape; () for a scalar."""
        return self._dump._index.shapes[self._row]

    @property
    def nbytes(self) -> int:
        """The bytes it takes in the dump."""
        return self._dump._index.sizes[self._row]

    @property
    def content(self) -> tuple[str, int, int]:
        """Equal for equal contents (the shape aside)."""
        index = self._dump._index
        return index.dtypes[self._row], index.sizes[self._row], index.checksums[self._row]

    @property
    def form(self) -> str:
        """ "values", or the word of a form of record that a later aligner writes."""
        return self._dump._index.forms[self._row]

    @property
    def imported(self) -> bool:
        """Whether the dump was made of what operators tell (`aligner import`)."""
        return "imported" in self._dump.header

    @property
    def place(self) -> tuple[object, ...]:
        """Equal for two records of one dump that are names of one stored array: their values are the same unseen."""
        index = self._dump._index
        if not index.sizes[self._row]:
            return (self._row,)
        return index.offsets[self._row], index.dtypes[self._row], index.shapes[self._row]

    def stream(self, buffer: Array, verify: bool = True) -> Iterator[Array]:
        """Successive pieces of the raw bits, flat and in storage type, as views into `buffer`.

        Args:
            buffer: flat contiguous uint8 array of at least 16 bytes; a piece is overwritten by the next one.
            verify: check the checksum; a second reading of values that were checked just now need not.

        Raises:
            DumpError: the values are damaged; this is known only after the last piece.
        """
        if self.form != VALUES:
            raise DumpError("dump-form", path=self._dump.path, layer=self._name(), form=self.form)
        if buffer.dtype != np.uint8 or buffer.ndim != 1 or buffer.size < _UNIT:
            raise ValueError(f"a flat uint8 buffer of at least {_UNIT} bytes is needed")
        self._dump._guarded()
        index = self._dump._index
        offset, size = index.offsets[self._row], self.nbytes
        storage = DTYPES[self.dtype].storage
        total = Checksum()
        step = buffer.size - buffer.size % _UNIT
        for at in range(0, size, step):
            piece = buffer[: min(step, size - at)]
            self._dump._read_into(piece, offset + at)
            if verify:
                total.update(piece)
            yield piece.view(storage)
        if verify and total.value() != index.checksums[self._row]:
            raise DumpError("dump-damaged", path=self._dump.path, layer=self._name())

    def raw(self) -> Array:
        """The exact bits, in storage type: bfloat16 as uint16, float8 as uint8."""
        flat = np.empty(-(-max(self.nbytes, 1) // _UNIT) * _UNIT, np.uint8)
        for _ in self._fill(flat):
            pass
        return flat[: self.nbytes].view(DTYPES[self.dtype].storage).reshape(self.shape)

    def _fill(self, flat: Array) -> Iterator[None]:
        """Stream into successive places of one array, so that its checksum is taken while it is in the cache."""
        if self.form != VALUES:
            raise DumpError("dump-form", path=self._dump.path, layer=self._name(), form=self.form)
        self._dump._guarded()
        index = self._dump._index
        offset, total = index.offsets[self._row], Checksum()
        for at in range(0, self.nbytes, PIECE):
            piece = flat[at : min(at + PIECE, self.nbytes)]
            self._dump._read_into(piece, offset + at)
            total.update(piece)
            yield
        if total.value() != index.checksums[self._row]:
            raise DumpError("dump-damaged", path=self._dump.path, layer=self._name())

    def load(self) -> Array:
        """The values as numbers numpy computes with: float32 for bfloat16 and float8."""
        return decode(self.raw(), self.dtype)

    @property
    def array(self) -> Array:
        """The values, read anew each time."""
        return self.load()

    def __getitem__(self, index: Any) -> Any:
        return self.load()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.load())

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Array:
        return self.load() if dtype is None else self.load().astype(dtype)

    def sample(self) -> Array:
        """Some of the values, flat: equal values have equal samples, and little is read of large ones.

        Raises:
            DumpError: the values cannot be read. That they are damaged shows only where all is read.
        """
        if self.form != VALUES:
            raise DumpError("dump-form", path=self._dump.path, layer=self._name(), form=self.form)
        self._dump._guarded()
        offset, storage = self._dump._index.offsets[self._row], DTYPES[self.dtype].storage
        count = self.nbytes // storage.itemsize
        runs, length = (1, count) if count <= SAMPLED else (RUNS, SAMPLED // RUNS)
        flat = np.empty((runs, length), storage)
        for place, run in zip(np.linspace(0, count - length, runs).astype(np.int64), flat):
            self._dump._read_into(run.view(np.uint8), offset + int(place) * storage.itemsize)
        return decode(flat.reshape(-1), self.dtype)

    def statistics(self) -> Statistics:
        """Minimum, maximum, mean, root mean square, and how many are NaN or infinite; one pass, piece by piece."""
        low, high, total, squares, nan, inf, count = math.inf, -math.inf, 0.0, 0.0, 0, 0, 0
        buffer = np.empty(PIECE, np.uint8)
        for piece in self.stream(buffer):
            values = decode(piece, self.dtype)
            if values.dtype.kind == "c":
                values = np.abs(values)
            with np.errstate(invalid="ignore"):  # a NaN that signals, among values that any bits may be
                wide = values.astype(np.float64)
            finite = wide[np.isfinite(wide)]
            nan += int(np.isnan(wide).sum())
            inf += int(np.isinf(wide).sum())
            if finite.size:
                low, high = min(low, float(finite.min())), max(high, float(finite.max()))
                total += float(finite.sum())
                squares += float(np.dot(finite, finite))
                count += finite.size
        every = nan + inf + count
        if not count:
            return Statistics(math.nan, math.nan, math.nan, math.nan, nan, inf, every)
        return Statistics(low, high, total / count, math.sqrt(squares / count), nan, inf, every)

    def _name(self) -> str:
        key = self.key
        return f"{display(key.layer)} {key.slot}"

    def __repr__(self) -> str:
        key, sizes = self.key, "x".join(map(str, self.shape)) or "scalar"
        where = f"step {key.step} {key.phase.value} call {key.call}"
        return f"<Entry {display(key.layer)} {key.slot} {self.dtype} {sizes} ({where})>"

    def _repr_html_(self) -> str:
        from aligner.notebook.html import entry_html

        return entry_html(self)
