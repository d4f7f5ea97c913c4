"""One kind of layer said as another one that computes the same."""

from __future__ import annotations

import pytest

from aligner.vocabulary import told_as

NORM = {"num_features": 6, "eps": 1e-5, "momentum": 0.1, "affine": True}


def test_an_instance_norm_is_a_group_norm_of_one_channel_each():
    told = told_as("InstanceNorm", {**NORM, "track_running_stats": False}, "GroupNorm")
    assert told == {"num_groups": 6, "num_channels": 6, "eps": 1e-5, "affine": True}


@pytest.mark.parametrize(
    ("kind", "settings", "other"),
    [
        ("InstanceNorm", {**NORM, "track_running_stats": True}, "GroupNorm"),
        ("InstanceNorm", NORM, "BatchNorm"),
        ("GroupNorm", {"num_groups": 2}, "GroupNorm"),
    ],
)
def test_others_are_no_such_layer(kind, settings, other):
    assert told_as(kind, settings, other) is None
