"""Phrases of resumed runs: of when what they begin with is, and what to save and load in a framework's words."""

from __future__ import annotations

from collections.abc import Mapping

from aligner.explain.catalogue.entry import Text

_WHEN: Mapping[str, Text] = {
    "of-nothing": ("nothing of them is there", "完全没有内容"),
    "of-step": ("they are those of step {0}", "为第 {0} 步时的值"),
    "of-the-beginning": ("they are those of the very beginning (step 0)", "为训练最初（第 0 步）时的值"),
    "value-of-step": ("it is the one of step {0}", "为第 {0} 步时的值"),
    "value-of-the-beginning": ("it is the one of the very beginning (step 0)", "为训练最初（第 0 步）时的值"),
    "value-of-no-step": ("it is the one of no step of the whole run", "不是完整训练任何一步的值"),
    "of-no-step": ("they are those of no step of the whole run", "不是完整训练任何一步的值"),
}

_TORCH: Mapping[str, Text] = {
    "resume-parameters-torch": (
        "Save `net.state_dict()` and call `net.load_state_dict(...)` before training; with strict=False look at "
        "what it returns",
        "保存 `net.state_dict()`，并在训练前调用 `net.load_state_dict(...)`；若使用 strict=False，请检查其返回值",
    ),
    "resume-buffers-torch": (
        "Save `net.state_dict()`, which has the buffers too, and not `net.parameters()` alone",
        "保存包含缓冲区的 `net.state_dict()`，而不是只保存 `net.parameters()`",
    ),
    "resume-optimizer-torch": (
        "Save `optimizer.state_dict()` too, and call `optimizer.load_state_dict(...)` when the net has been "
        "loaded and moved",
        "同时保存 `optimizer.state_dict()`，并在网络加载、迁移完成后调用 `optimizer.load_state_dict(...)`",
    ),
    "resume-schedule-torch": (
        "Save `scheduler.state_dict()` and `optimizer.state_dict()`, whose groups hold the rate; make the schedule "
        "first, then load both",
        "保存 `scheduler.state_dict()` 和 `optimizer.state_dict()`（学习率保存在其参数组中）；"
        "先创建学习率策略，再加载两者",
    ),
    "resume-scaler-torch": (
        "Save `scaler.state_dict()` and call `scaler.load_state_dict(...)`: it has the scale and the growth counter",
        "保存 `scaler.state_dict()` 并调用 `scaler.load_state_dict(...)`：其中包含缩放系数和增长计数器",
    ),
    "resume-gradients-torch": (
        "Write checkpoints behind `optimizer.step()` alone, or save each parameter's `.grad` and the number of "
        "batches as well",
        "仅在 `optimizer.step()` 之后保存检查点，或同时保存每个参数的 `.grad` 和已累积的批次数",
    ),
    "resume-data-torch": (
        "Save epoch and batch; call `sampler.set_epoch(epoch)`, give the loader a `generator` whose state is saved, "
        "and pass over the batches that were seen",
        "保存轮次与批次编号；调用 `sampler.set_epoch(epoch)`，为加载器指定 `generator` 并保存其状态，"
        "再跳过已训练的批次",
    ),
    "resume-random-torch": (
        "Save `torch.get_rng_state()`, `torch.cuda.get_rng_state_all()` and the states of `numpy.random` and `random`, "
        "and set them before the first step",
        "保存 `torch.get_rng_state()`、`torch.cuda.get_rng_state_all()` 以及 `numpy.random` 和 `random` 的状态，"
        "并在第一步之前恢复",
    ),
}

_MINDSPORE: Mapping[str, Text] = {
    "resume-parameters-mindspore": (
        "Call `ms.load_param_into_net(net, ms.load_checkpoint(...))` before training, and look at "
        "what it returns as not loaded",
        "训练前调用 `ms.load_param_into_net(net, ms.load_checkpoint(...))`，并检查其返回的未加载参数",
    ),
    "resume-buffers-mindspore": (
        "Save the net itself with `ms.save_checkpoint(net, ...)`: `net.trainable_params()` leaves moving_mean and "
        "moving_variance out",
        "用 `ms.save_checkpoint(net, ...)` 保存网络本身：`net.trainable_params()` 不含 moving_mean 和 moving_variance",
    ),
    "resume-optimizer-mindspore": (
        "Save the optimizer as well, `ms.save_checkpoint(optimizer, ...)` or the training cell that holds it, and "
        "load it with `ms.load_param_into_net(optimizer, ms.load_checkpoint(...))`",
        "同时保存优化器：`ms.save_checkpoint(optimizer, ...)` 或包含它的训练 Cell，并用 "
        "`ms.load_param_into_net(optimizer, ms.load_checkpoint(...))` 加载",
    ),
    "resume-schedule-mindspore": (
        "Schedules go by the optimizer's `global_step`: save the optimizer, `ms.save_checkpoint(optimizer, ...)`, "
        "and load it",
        "学习率策略按优化器的 `global_step` 推进：请用 `ms.save_checkpoint(optimizer, ...)` 保存优化器并加载",
    ),
    "resume-scaler-mindspore": (
        "Save `scale_value` and `counter` of the loss scaler, or the training cell with its `scale_sense`, "
        "and load them",
        "保存损失缩放器的 `scale_value` 和 `counter`，或含 `scale_sense` 的训练 Cell，并加载",
    ),
    "resume-gradients-mindspore": (
        "Write checkpoints behind the optimizer alone, or save what is accumulated and the number of batches as well",
        "仅在优化器更新之后保存检查点，或同时保存已累积的梯度和批次数",
    ),
    "resume-data-mindspore": (
        "Save epoch and batch: `dataset.skip(...)` passes over the batches that were seen, `model.train` "
        "takes `initial_epoch`, and `ms.dataset.config.set_seed(...)` makes the shuffling the same",
        "保存轮次与批次编号：用 `dataset.skip(...)` 跳过已训练的批次，`model.train` 可传入 `initial_epoch`，"
        "并用 `ms.dataset.config.set_seed(...)` 使打乱顺序相同",
    ),
    "resume-random-mindspore": (
        "Save `ms.get_rng_state()` and the states of `numpy.random` and `random`, and set them before the first step",
        "保存 `ms.get_rng_state()` 以及 `numpy.random` 和 `random` 的状态，并在第一步之前恢复",
    ),
}

RESUMED: Mapping[str, Text] = {**_WHEN, **_TORCH, **_MINDSPORE}
