"""Causes about arguments that are not handed over."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "mask-not-passed",
        ("{given} is called without its mask", "调用 {given} 时没有传入掩码"),
        (
            "The reference hands it {slot} {shape}; the port hands over nothing",
            "标杆传入了参数 {slot}，形状为 {shape}；待比对网络没有传入",
        ),
        ("Hand the mask over where {layer} calls {given}", "在 {layer} 调用 {given} 处传入掩码"),
    ),
    Entry(
        "argument-missing",
        ("{given} is called without its argument {slot}", "调用 {given} 时没有传入参数 {slot}"),
        (
            "The reference hands it a tensor {shape}; the port hands over nothing",
            "标杆传入了形状为 {shape} 的张量；待比对网络没有传入",
        ),
        ("Hand the argument over where {layer} calls {given}", "在 {layer} 调用 {given} 处传入该参数"),
    ),
)
