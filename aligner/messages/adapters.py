"""Messages about adapters and frameworks."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {
    "adapter-unknown": (
        "No adapter for the framework '{name}'; installed are: {known}.\n"
        "Choose one of these with --framework, or install the package that brings the adapter.",
        "没有框架 '{name}' 的适配器；已安装的有：{known}。\n请用 --framework 选择其中之一，或安装提供该适配器的软件包。",
    ),
    "adapter-broken": (
        "The framework '{name}' cannot be used here: {reason}\nRun `aligner doctor` for what is missing.",
        "框架 '{name}' 在此环境中无法使用：{reason}\n请运行 `aligner doctor` 查看缺少什么。",
    ),
    "model-unknown": (
        "{type} is not a model of any framework known here ({known}).\n"
        "Hand over a torch.nn.Module or a mindspore.nn.Cell.",
        "{type} 不是此处已知框架（{known}）的模型。\n请传入 torch.nn.Module 或 mindspore.nn.Cell。",
    ),
}
