"""What a recurrent cell that is written by hand does otherwise. Facts: `reference_code`, `port_code`, `left`."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry, Text

_CODE: Text = (
    "The reference computes {reference_code}, the port {port_code}: {left} is left",
    "标杆计算 {reference_code}，待比对计算 {port_code}：剩余误差 {left}",
)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "cell-gate-order",
        (
            "Other parts of the product are taken as the gates of the cell",
            "循环单元的门取自乘积的其他部分（门的次序不同）",
        ),
        _CODE,
        ("Split the product in the reference's order: {reference_code}", "按标杆的次序切分：{reference_code}"),
    ),
    Entry(
        "cell-forget-bias",
        (
            "The port adds {found} to the forget gate, the reference {wanted}",
            "待比对给遗忘门加 {found}，标杆加 {wanted}",
        ),
        _CODE,
        ("Add {wanted} to the forget gate", "给遗忘门加上 {wanted}"),
    ),
)
