"""Causes that lie between an update and the next step, in what the program does by itself."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

_NOTHING = ("", "")
_WHOSE = (
    "{parameters} ({count} in all); what it is given of them agrees",
    "{parameters}（共 {count} 个）；变化前的值一致",
)

PROGRAM: tuple[Entry, ...] = (
    Entry(
        "moving-average-factor",
        (
            "The moving average (EMA) keeps {port} of itself in a step, the reference's keeps {reference}",
            "滑动平均（EMA）每步保留自身的 {port}，标杆保留 {reference}",
        ),
        (
            "{parameters} ({count} in all); the rest comes of {of} on both sides",
            "{parameters}（共 {count} 个）；其余部分两侧均来自 {of}",
        ),
        (
            "Keep {reference} of it, and add 1 - {reference} times {of}",
            "保留 {reference}，并加上 {of} 的 1 - {reference} 倍",
        ),
    ),
    Entry(
        "program-changes-missing",
        (
            "The reference's program changes these between the update and the next step, the port's does not",
            "标杆程序在更新之后、下一步之前修改了这些参数，待比对程序没有",
        ),
        _WHOSE,
        (
            "Do what the reference does behind its update: a moving average, a queue, values that are cut off",
            "按标杆在更新之后的做法处理：滑动平均、队列、截断数值等",
        ),
    ),
    Entry(
        "statistics-other-runs",
        (
            "Calls of {layer} in this step: {port_value}, of the reference's: {reference_value}; each one in train "
            "mode moves its running statistics",
            "{layer} 在该步的调用次数为 {port_value}，标杆为 {reference_value}：训练模式下每次调用都会更新滑动统计量",
        ),
        _NOTHING,
        (
            "Call it as often in each step as the reference does: keep what it has made instead of making it again",
            "每步的调用次数应与标杆一致：保留已有的输出，不要重新计算",
        ),
    ),
    Entry(
        "program-changes-alone",
        (
            "The port's program changes these between the update and the next step, the reference's does not",
            "待比对程序在更新之后、下一步之前修改了这些参数，标杆程序没有",
        ),
        _WHOSE,
        ("Take out what changes them behind the update", "去掉更新之后对它们的修改"),
    ),
    Entry(
        "program-changes-otherwise",
        (
            "The program makes other values of these between the update and the next step than the reference's",
            "程序在更新之后、下一步之前对这些参数的修改与标杆不同",
        ),
        _WHOSE,
        (
            "Compare what both do behind the update: a moving average, a queue, values that are cut off",
            "比较两侧在更新之后的做法：滑动平均、队列、截断数值等",
        ),
    ),
)
