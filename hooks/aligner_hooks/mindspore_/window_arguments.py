"""What the constructors of convolutions and poolings want to be given for settings in canonical words.

The other direction of `windows`. Where a cell can say one thing in several ways, each is a candidate: the one whose
settings read as wanted is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple, Optional

from aligner.record import Attribute
from aligner_hooks.mindspore_ import windows

Attributes = dict[str, Attribute]


class Recipe(NamedTuple):
    """The class, by its name in its home, and what its constructor is given."""

    name: str
    arguments: dict[str, Any]


Write = Callable[[str, Any, Attributes], Iterator[Recipe]]

_WINDOW = ("kernel_size", "stride", "padding", "dilation")


def convolution(count: int) -> Write:
    """For nn.Conv1d, 2d and 3d."""

    def write(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
        _zeros_only(name, wanted)
        given = _of_convolution(cell, wanted, count)
        for pad_mode, padding in _paddings(cell, wanted, count):
            if padding and count == 1 and padding[0] != padding[1]:
                continue
            yield Recipe(name, {**given, "pad_mode": pad_mode, "padding": _sizes(padding)})

    return write


def transposed(count: int) -> Write:
    """For nn.Conv1dTranspose, 2d and 3d; the first two cut less at the end where torch has output_padding."""

    def write(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
        _zeros_only(name, wanted)
        given = _of_convolution(cell, wanted, count)
        own = windows.transposed(count)(cell)
        if _unchanged(wanted, own, (*_WINDOW, "output_padding")):
            kept = {"pad_mode": cell.pad_mode, "padding": _own_padding(cell, count)}
            more = {"output_padding": cell.output_padding} if count > 1 else {}
            yield Recipe(name, {**given, **kept, **more})
        for pad_mode in ("valid", "same"):
            yield Recipe(name, {**given, "pad_mode": pad_mode})
        yield Recipe(name, {**given, "pad_mode": "pad", **_cut(name, wanted, count)})

    return write


def _cut(name: str, wanted: Attributes, count: int) -> dict[str, Any]:
    """padding and output_padding for pad_mode "pad"."""
    pairs: Any = wanted["padding"]
    added: Any = wanted["output_padding"]
    words = any(isinstance(rows, str) for rows in added)
    if count == 3:
        return {"padding": _sizes(_flat(pairs)), "output_padding": _sizes(added)}
    if words:
        rows = tuple(int(str(each).split()[0]) for each in added)
        return {"padding": _sizes(_flat(pairs)), "output_padding": _sizes(rows)}
    cut = tuple((before, after - less) for (before, after), less in zip(pairs, added))
    if any(after < 0 for _, after in cut):
        raise ValueError(f"nn.{name} cannot add more rows at the end than it cuts there")
    if count == 1 and cut[0][0] != cut[0][1]:
        raise ValueError(f"nn.{name} cuts as much at the end as at the start")
    return {"padding": _sizes(_flat(cut))}


def _of_convolution(cell: Any, wanted: Attributes, count: int) -> dict[str, Any]:
    given: dict[str, Any] = {
        "in_channels": wanted["in_channels"],
        "out_channels": wanted["out_channels"],
        "kernel_size": _sizes(wanted["kernel_size"]),
        "stride": _sizes(wanted["stride"]),
        "dilation": _sizes(wanted["dilation"]),
        "group": wanted["groups"],
        "has_bias": wanted["bias"],
    }
    if count > 1 and getattr(cell, "data_format", "NC").endswith("C"):
        given["data_format"] = cell.data_format
    return given


def _paddings(cell: Any, wanted: Attributes, count: int) -> Iterator[tuple[str, Any]]:
    """pad_mode and padding: as the cell has them where nothing changed, else every way to say it."""
    pairs = wanted["padding"]
    if _unchanged(wanted, windows.convolution(count)(cell), _WINDOW) and cell.pad_mode != "pad":
        yield cell.pad_mode, 0
    if pairs == windows.no_padding(count):
        yield "valid", 0
    if isinstance(pairs, tuple) and any(map(any, pairs)):  # type: ignore[arg-type]  # pairs of numbers
        yield "pad", _flat(pairs)
    yield "same", 0


def mint_convolution(count: int) -> Write:
    """For mint.nn.Conv1d, 2d, 3d and ConvTranspose2d: torch's words."""

    def write(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
        given: dict[str, Any] = {word: _sizes(value) for word, value in wanted.items()}
        given["padding"] = wanted["padding"]
        own = windows.mint_convolution(count)(cell)
        if isinstance(cell.padding, str) and _unchanged(wanted, own, _WINDOW):
            yield Recipe(name, {**given, "padding": cell.padding})
        if given["padding"] == "same":
            yield Recipe(name, given)
            return
        try:
            yield Recipe(name, {**given, "padding": _sizes(_even(name, wanted))})
        except ValueError:
            yield Recipe(name, {**given, "padding": "same"})

    return write


def pooling(count: int, largest: bool) -> Write:
    """For nn's MaxPool and AvgPool."""

    def write(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
        given: dict[str, Any] = {
            "kernel_size": _sizes(wanted["kernel_size"]),
            "stride": _sizes(wanted["stride"]),
            **_kept(cell, largest, count),
        }
        rest = {"ceil_mode": wanted["ceil_mode"]}
        if largest:
            rest["dilation"] = _sizes(wanted["dilation"])
        else:
            rest["count_include_pad"] = wanted["count_include_pad"]
        own = windows.pooling(count, largest)(cell)
        if _unchanged(wanted, own, tuple(wanted)) and cell.pad_mode == "SAME":
            yield Recipe(name, {**given, "pad_mode": "same"})
        if wanted["padding"] == windows.no_padding(count):
            plain = dict(rest) if not largest or rest["ceil_mode"] else {}
            yield Recipe(name, {**given, "pad_mode": "valid", **plain})
        if wanted["padding"] == "same":
            yield Recipe(name, {**given, "pad_mode": "same", **({"ceil_mode": True} if rest["ceil_mode"] else {})})
            return
        padding = _sizes(_even(name, wanted))
        yield Recipe(name, {**given, "pad_mode": "pad", "padding": padding, **rest})

    return write


def _kept(cell: Any, largest: bool, count: int) -> dict[str, Any]:
    """What the vocabulary has no word for."""
    kept: dict[str, Any] = {}
    if largest and cell.return_indices:
        kept["return_indices"] = True
    divisor = None if largest else vars(cell.avg_pool).get("divisor_override")
    if divisor:
        kept["divisor_override"] = divisor
    if count == 2 and cell.format != "NCHW":
        kept["data_format"] = cell.format
    return kept


def mint_pooling(count: int, largest: bool) -> Write:
    """For mint's: torch's words."""

    def write(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
        given = {**wanted, "padding": _even(name, wanted)}
        if getattr(cell, "return_indices", False):
            given["return_indices"] = True
        if getattr(cell, "divisor_override", None):
            given["divisor_override"] = cell.divisor_override
        yield Recipe(name, {word: _sizes(value) for word, value in given.items()})

    return write


def adaptive(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """For the adaptive poolings of nn and of mint."""
    given: dict[str, Any] = {"output_size": _sizes(wanted["output_size"])}
    if getattr(cell, "return_indices", False):
        given["return_indices"] = True
    yield Recipe(name, given)


def unfold(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """nn.Unfold's windows have axes for samples and channels."""
    given = {
        own: (1, *_tuple(wanted[word]), 1)
        for own, word in (("ksizes", "kernel_size"), ("strides", "stride"), ("rates", "dilation"))
    }
    for padding in ("valid", "same"):
        yield Recipe(name, {**{own: list(sizes) for own, sizes in given.items()}, "padding": padding})


def mint_unfold(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """mint's has torch's words."""
    given = {**wanted, "padding": _even(name, wanted)}
    yield Recipe(name, {word: _sizes(value) for word, value in given.items()})


def _zeros_only(name: str, wanted: Attributes) -> None:
    if wanted["padding_mode"] != "zeros":
        raise ValueError(
            f"nn.{name} pads with zeros only; for {wanted['padding_mode']} the padding is a layer before it"
        )


def _unchanged(wanted: Attributes, own: Attributes, names: Sequence[str]) -> bool:
    return all(wanted.get(name) == own.get(name) for name in names)


def _own_padding(cell: Any, count: int) -> Any:
    """What the constructor was given: the one-dimensional cell keeps two axes."""
    return cell.padding[-1] if count == 1 and isinstance(cell.padding, tuple) else cell.padding


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value)


def _sizes(value: Any) -> Any:
    """One number where all axes are alike: every constructor takes that, and the one-dimensional ones nothing else."""
    alike = isinstance(value, tuple) and len(set(value)) == 1 and value[0] is not None
    return value[0] if alike else value


def _flat(pairs: Any) -> tuple[int, ...]:
    return tuple(number for pair in pairs for number in pair)


def _even(name: str, wanted: Attributes) -> tuple[int, ...]:
    """Padding as one number per axis."""
    pairs: Optional[Any] = wanted["padding"]
    if not isinstance(pairs, tuple) or any(before != after for before, after in pairs):
        raise ValueError(f"{name} pads both ends of an axis alike, which {pairs} does not")
    return tuple(before for before, _ in pairs)
