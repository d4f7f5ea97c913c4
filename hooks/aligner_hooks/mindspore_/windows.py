"""The settings of cells that slide a window: convolutions and poolings, above all how they pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Union

from aligner.record import Attribute

Attributes = dict[str, Attribute]
Pairs = tuple[tuple[int, int], ...]


def axes(value: Any, count: int) -> tuple[int, ...]:
    """One entry per spatial axis; cells that work in more dimensions than their name says keep theirs last."""
    return tuple(value)[-count:] if isinstance(value, Sequence) else (value,) * count


def pairs(value: Any, count: int) -> Pairs:
    """(before, after) per axis from one number, one per axis, or two per axis."""
    if isinstance(value, int):
        return ((value, value),) * count
    flat = tuple(value)
    if len(flat) < 2 * count:
        return tuple((each, each) for each in axes(flat * count if len(flat) == 1 else flat, count))
    flat = flat[-2 * count :]
    return tuple((flat[2 * axis], flat[2 * axis + 1]) for axis in range(count))


def same_padding(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Union[Pairs, str]:
    """What pad_mode "same" adds at stride 1, the odd one behind; at other strides it depends on the input."""
    if any(step != 1 for step in stride):
        return "same"
    totals = [spread * (size - 1) for size, spread in zip(kernel, dilation)]
    return tuple((total // 2, total - total // 2) for total in totals)


def no_padding(count: int) -> Pairs:
    """pad_mode "valid"."""
    return ((0, 0),) * count


def convolution(count: int) -> Callable[[Any], Attributes]:
    """For nn.Conv1d, 2d and 3d."""

    def read(cell: Any) -> Attributes:
        kernel, stride, dilation = (axes(v, count) for v in (cell.kernel_size, cell.stride, cell.dilation))
        padding = {
            "valid": no_padding(count),
            "same": same_padding(kernel, stride, dilation),
            "pad": pairs(cell.padding, count),
        }[cell.pad_mode]
        return _convolution(cell, kernel, stride, dilation, padding, cell.group, "zeros")

    return read


def transposed(count: int) -> Callable[[Any], Attributes]:
    """For nn.Conv1dTranspose, 2d and 3d: their "same" and "valid" fix the output's size, hence the padding.

    Cutting one row less at the end is what torch calls output_padding, and is said so. The 2d cell's own is meant to
    be the same, though on CPU it appends rows of zeros: the numbers tell, not the setting.
    """

    def read(cell: Any) -> Attributes:
        kernel, stride, dilation = (axes(v, count) for v in (cell.kernel_size, cell.stride, cell.dilation))
        output_padding = axes(getattr(cell, "output_padding", 0), count)
        padding = pairs(cell.padding, count)
        if cell.pad_mode == "valid":
            padding = no_padding(count)
        elif cell.pad_mode == "same":
            spans = [spread * (size - 1) + 1 for size, spread in zip(kernel, dilation)]
            totals = [max(span - step, 0) for span, step in zip(spans, stride)]
            padding = tuple((total // 2, total - total // 2) for total in totals)
            output_padding = tuple(max(step - span, 0) for span, step in zip(spans, stride))
        if not any(output_padding) and all(before >= after for before, after in padding):
            output_padding = tuple(before - after for before, after in padding)
            padding = tuple((before, before) for before, _ in padding)
        found = _convolution(cell, kernel, stride, dilation, padding, cell.group, "zeros")
        return {**found, "output_padding": output_padding}

    return read


def mint_convolution(count: int) -> Callable[[Any], Attributes]:
    """For mint.nn.Conv1d, 2d, 3d and ConvTranspose2d: torch's attributes."""

    def read(cell: Any) -> Attributes:
        kernel, stride, dilation = (axes(v, count) for v in (cell.kernel_size, cell.stride, cell.dilation))
        padding: Union[Pairs, str]
        if cell.padding == "same":
            padding = same_padding(kernel, stride, dilation)
        else:
            padding = no_padding(count) if cell.padding == "valid" else pairs(axes(cell.padding, count), count)
        found = _convolution(cell, kernel, stride, dilation, padding, cell.groups, cell.padding_mode)
        if cell.transposed:
            found["output_padding"] = axes(cell.output_padding, count)
        return found

    return read


def _convolution(
    cell: Any,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    padding: Union[Pairs, str],
    groups: int,
    padding_mode: str,
) -> Attributes:
    return {
        "in_channels": cell.in_channels,
        "out_channels": cell.out_channels,
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": cell.bias is not None,
        "padding_mode": padding_mode,
    }


def pooling(count: int, largest: bool) -> Callable[[Any], Attributes]:
    """For nn's MaxPool and AvgPool: what is not the default stands in the primitive only."""

    def read(cell: Any) -> Attributes:
        kernel, stride = axes(cell.kernel_size, count), axes(cell.stride, count)
        settings = vars(cell.max_pool if largest else cell.avg_pool)
        spread = axes(settings.get("dilation", 1), count)
        if cell.pad_mode == "SAME":
            padding: Union[Pairs, str] = same_padding(kernel, stride, spread)
        elif cell.pad_mode == "VALID":
            padding = no_padding(count)
        elif "pad_list" in settings:
            padding = pairs(settings["pad_list"], count)
        else:
            padding = pairs(axes(settings["pads"], count), count)
        found: Attributes = {
            "kernel_size": kernel,
            "stride": stride,
            "padding": padding,
            "ceil_mode": bool(settings.get("ceil_mode", False)),
        }
        if largest:
            return {**found, "dilation": spread}
        # What pad_mode "same" adds is never counted in the mean.
        counted = settings.get("count_include_pad", True) and cell.pad_mode != "SAME"
        return {**found, "count_include_pad": bool(counted)}

    return read


def mint_pooling(count: int, largest: bool) -> Callable[[Any], Attributes]:
    """For mint's: torch's attributes."""

    def read(cell: Any) -> Attributes:
        found: Attributes = {
            "kernel_size": axes(cell.kernel_size, count),
            "stride": axes(cell.kernel_size if cell.stride is None else cell.stride, count),
            "padding": pairs(axes(cell.padding, count), count),
            "ceil_mode": cell.ceil_mode,
        }
        if largest:
            return {**found, "dilation": axes(cell.dilation, count)}
        return {**found, "count_include_pad": cell.count_include_pad}

    return read


def adaptive(count: int) -> Callable[[Any], Attributes]:
    """For the adaptive poolings: -1 or None leaves an axis as it is."""

    def read(cell: Any) -> Attributes:
        inside = (getattr(cell, name, None) for name in ("adaptive_avgpool2d", "adaptive_avg_pool3d"))
        primitive = next((each for each in inside if each is not None), cell)
        sizes = primitive.output_size
        # AdaptiveMaxPool3d keeps its sizes as a tensor.
        sizes = axes(sizes.asnumpy().tolist() if hasattr(sizes, "asnumpy") else sizes, count)
        return {"output_size": tuple(None if size == -1 else size for size in sizes)}

    return read


def unfold(cell: Any) -> Attributes:
    """nn.Unfold keeps NHWC-like windows inside a primitive; mint's has torch's attributes."""
    patches = getattr(cell, "extract_image_patches", None)
    if patches is None:
        return {
            "kernel_size": axes(cell.kernel_size, 2),
            "stride": axes(cell.stride, 2),
            "padding": pairs(axes(cell.padding, 2), 2),
            "dilation": axes(cell.dilation, 2),
        }
    found = {name: axes(patches.init_attrs[name], 2) for name in ("ksizes", "strides", "rates")}
    padded = str(patches.init_attrs["padding"]).lower() == "same"
    return {
        "kernel_size": found["ksizes"],
        "stride": found["strides"],
        "padding": same_padding(found["ksizes"], found["strides"], found["rates"]) if padded else no_padding(2),
        "dilation": found["rates"],
    }
