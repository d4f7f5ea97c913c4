"""The very line of the port's code that does something else than the reference's."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

_AS_THERE = ("Write it as the reference does: {reference_code}", "按标杆改写：{reference_code}")
_SAME_BEFORE = (
    "It starts from values that the reference has, too, and makes the first one that the reference has nowhere",
    "该行所用的值标杆中都有，而其结果是第一个标杆中没有的值",
)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "code-edit",
        ("The code at {place} does not do what the reference's does", "{place} 处的代码与标杆的计算不一致"),
        ("It was run with other lines, and came out right", "已按修改后的代码运行，结果正确"),
        ("Write the lines of the edit", "按所示修改改写"),
    ),
    Entry(
        "framework-differs",
        (
            "{port_operation} at {place} is no mistake of yours: that of {framework} differs from the reference's",
            "{place} 处的 {port_operation} 并非移植错误：{framework} 的实现与标杆框架不同",
        ),
        (
            "It was given the reference's values and the arguments of {operation}, and made another value",
            "所用的值与 {operation} 的参数均与标杆相同，结果却不同",
        ),
        (
            "Write it with other operations, or allow this error here; --repro shows it by itself, for the framework's "
            "authors",
            "改用其他算子实现，或在此处允许该误差；可用 --repro 生成独立复现程序并反馈给框架方",
        ),
    ),
    Entry(
        "framework-layer-differs",
        (
            "Most likely no mistake of yours: {kind} of {framework} differs from the reference's",
            "很可能并非移植错误：{framework} 的 {kind} 与标杆框架不同",
        ),
        (
            "It has the reference's settings, weights and inputs, and makes another value",
            "设置、权重与输入均与标杆相同，结果却不同",
        ),
        (
            "Show it by itself with --repro, for the framework's authors; write it with other operations",
            "用 --repro 生成独立复现程序并反馈给框架方；或改用其他算子实现",
        ),
    ),
    Entry(
        "line-differs",
        (
            "{port_line} does something else than {reference_line}: {port_operation}, in the reference {operation}",
            "{port_line} 与 {reference_line} 的计算不同：待比对为 {port_operation}，标杆为 {operation}",
        ),
        _SAME_BEFORE,
        _AS_THERE,
    ),
    Entry(
        "line-argument",
        (
            "{port_operation} is given {theirs} at {port_line}, in the reference {ours}",
            "{port_line} 的 {port_operation} 参数为 {theirs}，标杆为 {ours}",
        ),
        _SAME_BEFORE,
        ("Give it {ours}, as the reference does: {reference_code}", "与标杆一样取 {ours}：{reference_code}"),
    ),
    Entry(
        "line-operand",
        (
            "{port_line} works on another value than {reference_line}",
            "{port_line} 所用的值与 {reference_line} 不同",
        ),
        (
            "Both do {operation}; the reference has another value in the place of one that the port takes",
            "两边都做 {operation}，但所取的值不同",
        ),
        (
            "Take the value that the reference takes: {reference_code}",
            "改用标杆所用的值：{reference_code}",
        ),
    ),
    Entry(
        "line-missing",
        (
            "The port lacks what the reference does in {reference_line}: {operation}",
            "待比对缺少标杆 {reference_line} 所做的 {operation}",
        ),
        ("Up to {port_line} the port has the reference's values", "直到 {port_line}，待比对的值与标杆一致"),
        ("Add it: {reference_code}", "补上：{reference_code}"),
    ),
    Entry(
        "line-extra",
        (
            "{port_line} does what the reference does not: {port_operation}",
            "{port_line} 多做了标杆没有的 {port_operation}",
        ),
        _SAME_BEFORE,
        (
            "Take it out of the line, or do in the reference's way what it is for: {port_code}",
            "从该行去掉，或改用标杆的做法：{port_code}",
        ),
    ),
)
