"""Causes that lie in train or eval mode, and show in a forward pass."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

_NOTHING = ("", "")

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "bn-train-flag-default",
        (
            "BatchNorm uses running statistics, the reference those of the batch: the port's cell is not in train mode",
            "BatchNorm 使用滑动统计量，标杆使用批次统计量：待比对网络的 Cell 未处于训练模式",
        ),
        ("A Cell is born in eval mode, a Module in train mode", "Cell 默认处于推理模式，Module 默认处于训练模式"),
        (
            "Call net.set_train(True) before training, and again behind each evaluation",
            "训练前以及每次评估之后调用 net.set_train(True)",
        ),
    ),
    Entry(
        "bn-train-at-eval",
        (
            "BatchNorm uses the batch's statistics, the reference its running ones: the port's cell is in train mode",
            "BatchNorm 使用批次统计量，标杆使用滑动统计量：待比对网络的 Cell 处于训练模式",
        ),
        _NOTHING,
        (
            "Call net.set_train(False) before evaluating, and set no cell to train mode on its own",
            "推理前调用 net.set_train(False)，且不要单独将某个 Cell 设为训练模式",
        ),
    ),
    Entry(
        "bn-frozen-unfrozen-by-set-train",
        (
            "BatchNorm is frozen on one side only: the other uses the statistics of the batch",
            "仅一侧冻结了 BatchNorm：另一侧使用批次统计量",
        ),
        ("net.set_train() turns every BatchNorm inside back on", "net.set_train() 会重新启用其中所有 BatchNorm"),
        (
            "Write nn.BatchNorm2d(..., use_batch_statistics=False), or call bn.set_train(False) after net.set_train()",
            "写成 nn.BatchNorm2d(..., use_batch_statistics=False)，或在 net.set_train() 之后调用 bn.set_train(False)",
        ),
    ),
)
