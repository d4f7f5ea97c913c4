"""What the constructors of normalisation cells want to be given; the other direction of `norms`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aligner_hooks.mindspore_.norms import layer_norm as read_layer_norm
from aligner_hooks.mindspore_.window_arguments import Attributes, Recipe

# track_running_stats in canonical words -> use_batch_statistics.
_BATCH: dict[Any, Any] = {True: None, False: True, "always": False}


def batch_norm(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """The constructor takes 1 - torch's momentum."""
    momentum: Any = wanted["momentum"]
    given: dict[str, Any] = {
        "num_features": wanted["num_features"],
        "eps": wanted["eps"],
        "momentum": round(1.0 - momentum, 12),
        "affine": wanted["affine"],
    }
    tracked: Any = wanted["track_running_stats"]
    batch = _BATCH[tracked]
    if batch is not None:
        given["use_batch_statistics"] = batch
    layout = getattr(getattr(cell, "bn2d", cell), "format", "NCHW")
    if layout != "NCHW":
        given["data_format"] = layout
    yield Recipe(name, given)


def instance_norm(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """It knows no running statistics."""
    yield Recipe(name, {word: wanted[word] for word in ("num_features", "eps", "momentum", "affine")})


def layer_norm(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """Which axes it normalises over is for begin_norm_axis to say, whatever the shape of its weights is."""
    given: dict[str, Any] = {"normalized_shape": tuple(cell.normalized_shape), "epsilon": wanted["eps"]}
    if wanted["normalized_shape"] == read_layer_norm(cell)["normalized_shape"]:
        yield Recipe(name, {**given, **_axes(cell.begin_norm_axis, cell.begin_params_axis)})
        return
    shape: Any = wanted["normalized_shape"]
    given["normalized_shape"] = shape
    yield Recipe(name, {**given, **_axes(-len(shape), -len(shape))})


def _axes(norm: int, params: int) -> dict[str, Any]:
    return {"begin_norm_axis": norm, "begin_params_axis": params}


def mint_layer_norm(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """mint's has torch's words; a bias may be missing by itself."""
    given = {
        "normalized_shape": wanted["normalized_shape"],
        "eps": wanted["eps"],
        "elementwise_affine": wanted["affine"],
    }
    if cell.elementwise_affine and cell.bias is None:
        given["bias"] = False
    yield Recipe(name, given)


def group_norm(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """Of nn and of mint."""
    yield Recipe(name, {word: wanted[word] for word in ("num_groups", "num_channels", "eps", "affine")})


def local_response_norm(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """torch divides alpha by the window's size, MindSpore does not, and its window is odd."""
    size: Any = wanted["size"]
    alpha: Any = wanted["alpha"]
    given: dict[str, Any] = {
        "depth_radius": (size - 1) // 2,
        "bias": wanted["k"],
        "alpha": float(f"{alpha / size:.12g}"),
        "beta": wanted["beta"],
    }
    yield Recipe(name, given)
