"""The settings of normalisation cells, and whether their gamma and beta mean anything."""

from __future__ import annotations

from typing import Any

from aligner.record import Attribute

Attributes = dict[str, Attribute]


def stands_in_for_no_affine(cell: Any) -> bool:
    """Whether the cell was made with affine=False: it keeps a gamma of ones and a beta of zeros all the same.

    GroupNorm says so; BatchNorm and InstanceNorm only make gamma untrainable, as does a user who freezes a layer.
    What the constructor was given tells them apart: MindSpore notes the values, in the order of its parameters, and
    affine is the first that is a bool.
    """
    if hasattr(cell, "affine"):
        return not cell.affine
    gamma = getattr(cell, "gamma", None)
    if gamma is None or gamma.requires_grad:
        return False
    return _first_bool(str(getattr(cell, "_cell_init_args", ""))) == "False"


def _first_bool(values: str) -> str:
    """ "BatchNorm2ddict_values([4, 1e-05, False])" -> "False"."""
    listed = values.partition("dict_values([")[2].partition("])")[0]
    words = [word.strip() for word in listed.split(",")]
    return next((word for word in words if word in ("True", "False")), "")


def batch_norm(cell: Any) -> Attributes:
    """The cell keeps 1 - the constructor's momentum, which is torch's meaning, but for the rounding of that 1 - x."""
    cell = getattr(cell, "bn2d", cell)  # BatchNorm3d works with one of these on reshaped input
    # True: the statistics of the batch even in eval mode, as torch without running statistics. False: the running
    # ones even in train mode, for which torch has no setting.
    batch = cell.use_batch_statistics
    tracked: Attribute = True if batch is None else (False if batch else "always")
    return {
        "num_features": cell.num_features,
        "eps": cell.eps,
        "momentum": round(cell.momentum, 12),
        "affine": not stands_in_for_no_affine(cell),
        "track_running_stats": tracked,
    }


def instance_norm(cell: Any) -> Attributes:
    """It has running statistics and never uses them."""
    return {
        "num_features": cell.num_features,
        "eps": cell.eps,
        "momentum": cell.momentum,
        "affine": not stands_in_for_no_affine(cell),
        "track_running_stats": False,
    }


def layer_norm(cell: Any) -> Attributes:
    """The axes it really normalises over: from begin_norm_axis on, whatever the shape of its weights is."""
    shape: tuple[Attribute, ...] = tuple(cell.normalized_shape)
    if cell.begin_norm_axis < 0:
        axes = -cell.begin_norm_axis
        shape = shape[-axes:] if axes <= len(shape) else (None,) * (axes - len(shape)) + shape
    return {"normalized_shape": shape, "eps": cell.epsilon, "affine": True}


def mint_layer_norm(cell: Any) -> Attributes:
    """mint's has torch's attributes."""
    return {"normalized_shape": tuple(cell.normalized_shape), "eps": cell.eps, "affine": cell.elementwise_affine}


def group_norm(cell: Any) -> Attributes:
    """Of nn and of mint."""
    return {
        "num_groups": cell.num_groups,
        "num_channels": cell.num_channels,
        "eps": cell.eps,
        "affine": cell.affine,
    }


def local_response_norm(cell: Any) -> Attributes:
    """torch divides alpha by the window's size, MindSpore does not."""
    lrn = cell.lrn_op
    size = 2 * lrn.depth_radius + 1
    return {"size": size, "alpha": float(f"{lrn.alpha * size:.12g}"), "beta": lrn.beta, "k": lrn.bias}
