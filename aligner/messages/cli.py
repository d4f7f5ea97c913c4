"""Messages of the command line."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {
    "command-unknown": (
        "There is no command '{name}'; the commands are {known}.{hint}\nRun `aligner --help` for what each one does.",
        "没有名为 '{name}' 的命令；可用命令有 {known}。{hint}\n请运行 `aligner --help` 查看各命令的用途。",
    ),
    "did-you-mean": (" Did you mean {names}?", "您是否想输入 {names}？"),
    "interrupted": (
        "Interrupted; what was captured so far is readable.\nLook at it with `aligner show`.",
        "已中断；此前捕获的内容仍可读取。\n可用 `aligner show` 查看。",
    ),
    "internal-error": (
        "aligner itself failed, this is not an answer about your nets: {reason}\n"
        "Run the same command with -v and report the traceback together with the output of `aligner doctor`.",
        "aligner 自身出错，这并不是对网络的结论：{reason}\n"
        "请加上 -v 重新运行，并将调用栈与 `aligner doctor` 的输出一并反馈。",
    ),
    "usage-required": (
        "Missing on the command line of `{command}`: {names}.\nRun `{command} --help` for examples.",
        "`{command}` 的命令行缺少：{names}。\n请运行 `{command} --help` 查看示例。",
    ),
    "usage-value-missing": (
        "The option {option} of `{command}` wants a value and has none.\nRun `{command} --help` for what it takes.",
        "`{command}` 的选项 {option} 需要一个值，但没有给出。\n请运行 `{command} --help` 查看其取值。",
    ),
    "usage-choice": (
        "{value} is no value of {option}; wanted one of {choices}.\nRun `{command} --help` for what they mean.",
        "{value} 不是 {option} 的有效值；可选值为 {choices}。\n请运行 `{command} --help` 查看其含义。",
    ),
    "usage-value": (
        "{value} is no value of {option}.\nRun `{command} --help` for what it takes.",
        "{value} 不是 {option} 的有效值。\n请运行 `{command} --help` 查看其取值。",
    ),
    "usage-no-value": (
        "The option {option} takes no value, but {value} was given.\nLeave the value out; see `{command} --help`.",
        "选项 {option} 不带值，却给出了 {value}。\n请去掉该值；参见 `{command} --help`。",
    ),
    "usage-contradiction": (
        "The options {option} and {other} contradict each other.\nGive one of them; see `{command} --help`.",
        "选项 {option} 与 {other} 互相矛盾。\n请只保留其中一个；参见 `{command} --help`。",
    ),
    "usage-left-over": (
        "`{command}` does not know what to do with: {names}.\nRun `{command} --help` for its arguments.",
        "`{command}` 无法处理多余的参数：{names}。\n请运行 `{command} --help` 查看其参数。",
    ),
    "usage-option-unknown": (
        "`{command}` has no option {option}.{hint}\nRun `{command} --help` for its options.",
        "`{command}` 没有选项 {option}。{hint}\n请运行 `{command} --help` 查看其选项。",
    ),
    "usage-other": (
        "The command line of `{command}` cannot be read: {problem}.\nRun `{command} --help` for its arguments.",
        "无法理解 `{command}` 的命令行：{problem}。\n请运行 `{command} --help` 查看其参数。",
    ),
    "usage-number": (
        "{option} wants a number {wanted}, but has '{value}'.\nGive a number, for example {example}.",
        "{option} 需要一个{wanted}的数，却得到 '{value}'。\n请给出一个数，例如 {example}。",
    ),
    "help-usage": ("usage:", "用法："),
    "help-arguments": ("arguments", "参数"),
    "help-options": ("options", "选项"),
    "help-examples": ("examples", "示例"),
    "help-commands": ("commands", "命令"),
    "help-start": ("start with", "从这里开始"),
    "help-about": (
        "Find the layer of a MindSpore or MindTorch port that differs from its PyTorch reference.",
        "找出 MindSpore 或 MindTorch 移植网络中与 PyTorch 标杆不一致的层。",
    ),
    "help-more": (
        "`aligner COMMAND --help` ends with examples. Exit codes: 0 aligned, 1 diverged, 2 usage,\n"
        "3 incomparable, 4 internal error, 130 interrupted.",
        "`aligner 命令 --help` 的末尾附有示例。退出码：0 一致，1 超差，2 用法错误，\n3 无法比对，4 内部错误，130 中断。",
    ),
}
