"""Causes that lie in what a resumed run has not loaded. They are read from both dumps, and no trial proves them.

Facts: `how` tells of which step that is which it begins with, `fix` what to save and load in the port's framework;
`count` of `total` parameters by name, `step` as the whole run counts it.
"""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry, Text

_NOTHING = ("", "")
_FIX = ("{fix}", "{fix}")
_WHICH = ("{count} of {total} ({parameters}): {how}", "{total} 个中的 {count} 个（{parameters}）：{how}")


def _lost(cause: str, title: Text, evidence: Text = _NOTHING) -> Entry:
    return Entry(f"resume-{cause}", title, evidence, _FIX)


RESUMED: tuple[Entry, ...] = (
    _lost(
        "parameters",
        (
            "The parameters are not those that the whole run has in this step: {count} of {total} were not loaded",
            "参数不是完整训练在本步的值：{total} 个中有 {count} 个未加载",
        ),
        _WHICH,
    ),
    _lost(
        "buffers",
        (
            "The running statistics are not those that the whole run has in this step: {count} of {total} were not "
            "loaded",
            "滑动统计量不是完整训练在本步的值：{total} 个中有 {count} 个未加载",
        ),
        _WHICH,
    ),
    _lost(
        "optimizer-state",
        (
            "The optimizer's state was not loaded ({setting}): it has made {made} updates, the whole run's {wanted}",
            "优化器状态未加载（{setting}）：它已更新 {made} 次，完整训练为 {wanted} 次",
        ),
        _WHICH,
    ),
    _lost(
        "moments",
        (
            "What the optimizer keeps ({setting}) is not what the whole run has in this step: it was not loaded",
            "优化器保存的状态（{setting}）不是完整训练在本步的值：未加载",
        ),
        _WHICH,
    ),
    _lost(
        "step-counter",
        (
            "The optimizer's step counter was not loaded: it has made {made} updates, the whole run's {wanted}",
            "优化器的步数计数器未加载：它已更新 {made} 次，完整训练为 {wanted} 次",
        ),
        ("What it keeps of the parameters agrees", "它为各参数保存的状态一致"),
    ),
    _lost(
        "learning-rate",
        (
            "The learning rate of step {step} is {port_value}, the whole run has {reference_value}: the position in "
            "its schedule was not loaded",
            "第 {step} 步的学习率为 {port_value}，完整训练为 {reference_value}：未加载学习率策略的位置",
        ),
        ("{how}", "{how}"),
    ),
    _lost(
        "setting",
        (
            "The optimizer's {setting} of step {step} is {port_value}, the whole run has {reference_value}",
            "第 {step} 步优化器的 {setting} 为 {port_value}，完整训练为 {reference_value}",
        ),
        ("{how}", "{how}"),
    ),
    _lost(
        "loss-scale",
        (
            "The loss scale of step {step} is {scale}, the whole run has {wanted}: the scaler's state was not loaded",
            "第 {step} 步的损失缩放系数为 {scale}，完整训练为 {wanted}：缩放器的状态未加载",
        ),
    ),
    _lost(
        "scale-growth",
        (
            "The loss scale agrees at first and is {scale} in step {step}, where the whole run has {wanted}: the "
            "scaler's growth counter was not loaded",
            "损失缩放系数起初一致，第 {step} 步为 {scale}，而完整训练为 {wanted}：缩放器的增长计数器未加载",
        ),
    ),
    _lost(
        "accumulated-gradients",
        (
            "The run begins in the middle of step {step}: the gradients of the {count} batches before are lost",
            "训练从第 {step} 步的中间继续：之前 {count} 个批次累积的梯度丢失",
        ),
    ),
    _lost(
        "data-begins",
        (
            "The data begin again: the batch of step {step} is the whole run's of step 0",
            "数据从头开始：第 {step} 步的批次是完整训练第 0 步的批次",
        ),
    ),
    _lost(
        "data-other",
        (
            "The batch of step {step} is the whole run's of step {other}: the data's position is another one",
            "第 {step} 步的批次是完整训练第 {other} 步的批次：数据位置不同",
        ),
    ),
    _lost(
        "data-order",
        (
            "The batch of step {step} has rows of others of the whole run's: the data are shuffled anew",
            "第 {step} 步的批次由完整训练其他批次的行组成：数据被重新打乱",
        ),
        ("Its rows there: {rows}", "各行在完整训练中的位置：{rows}"),
    ),
    _lost(
        "data-nowhere",
        (
            "The batch of step {step} stands nowhere in the whole run: the data are shuffled or augmented anew",
            "第 {step} 步的批次在完整训练中不存在：数据被重新打乱或重新增强",
        ),
    ),
    _lost(
        "random-state",
        (
            "Other elements are dropped at random from step {step} on ({layer} {slot}): the random state was not "
            "loaded",
            "自第 {step} 步起随机丢弃的元素不同（{layer} {slot}）：随机数状态未加载",
        ),
        (
            "{share} % of its elements are zero on one side alone, all others agree",
            "有 {share} % 的元素仅在一侧为零，其余全部一致",
        ),
    ),
)
