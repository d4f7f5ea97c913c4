"""Messages of the command line."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {
    "command-unknown": (
        "There is no command '{name}'; the commands are {known}.{hint}\nRun `aligner --help` for what each one does.",
        "没有名为 '{name}' 的命令；可用命令有 {known}。{hint}\n请运行 `aligner --help` 查看各命令的用途。",
    ),
    "did-you-mean": (" Did you mean {names}?", "您是否想输入 {names}？"),
    "interrupted": (
        "Interrupted; no dump was being written.\nRun the same command again to have its answer.",
        "已中断；当时没有正在写入的转储。\n如需结果，请重新运行同一命令。",
    ),
    "interrupted-dump": (
        "Interrupted.\n{path} is readable up to here: `aligner show {path}`.",
        "已中断。\n{path} 在此之前的内容仍可读取：`aligner show {path}`。",
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
    "usage-tolerance": (
        "The tolerance '{value}' is no number from 0 up.\nGive one like 1e-3.",
        "容差 '{value}' 不是大于等于 0 的数。\n请给出形如 1e-3 的数。",
    ),
    "usage-count": (
        "{value} is no value of {option}: wanted a whole number from 1 up.\nGive one like 20.",
        "{value} 不是 {option} 的有效值：应为大于等于 1 的整数。\n请给出形如 20 的整数。",
    ),
    "usage-integer": (
        "{value} is no value of {option}: wanted a whole number.\nGive one like 0.",
        "{value} 不是 {option} 的有效值：应为整数。\n请给出形如 0 的整数。",
    ),
    "compare-progress": (
        "{done} of {total} pairs, {size} ({speed}/s)",
        "已比对 {done}/{total} 对，{size}（{speed}/s）",
    ),
    "strict-warnings": (
        "--strict: diverged, because there are warnings ({count}).",
        "--strict：存在警告（{count} 条），因此判为超差。",
    ),
    "repro-written": (
        "{script}: {layer} by itself; run it where {framework} is: python {script}",
        "{script}：单独运行 {layer}；请在装有 {framework} 的环境中执行：python {script}",
    ),
    "repro-unfinished": (
        "{script}: {layer} by itself, but how it is built must be filled in first ({reason})",
        "{script}：单独运行 {layer}，但需先填写该层的构造方式（{reason}）",
    ),
    "repro-refused": (
        "{script}: {layer} by itself, but how it is built must be filled in first: what the dump says of it is more than "
        "a layer of {framework}'s own, and was left out",
        "{script}：单独运行 {layer}，但需先填写该层的构造方式：转储中的描述不只是 {framework} 自带的层，已弃用",
    ),
    "patch-written": (
        "patch: {path} changes {files}; look at it, then `git apply {path}` (or `patch -p1 < {path}`) in {folder}",
        "补丁：{path} 修改 {files}；查看后在 {folder} 中执行 `git apply {path}`（或 `patch -p1 < {path}`）",
    ),
    "patch-shown": ("patch: changes {files}", "补丁：修改 {files}"),
    "patch-none": (
        "--patch: no edit of code was run and came out right; nothing is written.",
        "--patch：没有经运行验证的代码修改，因此未写出文件。",
    ),
    "patch-outside": (
        "not in the patch: {file}:{line} is no file of {folder}.\nName the port's folder with --patch-folder.",
        "未写入补丁：{file}:{line} 不在 {folder} 中。\n请用 --patch-folder 指定待比对网络源码所在目录。",
    ),
    "patch-changed": (
        "not in the patch: {file}:{line} no longer holds the lines that were run.\nCapture the port again.",
        "未写入补丁：{file}:{line} 已不是当时运行的代码。\n请重新采集待比对网络。",
    ),
    "patch-unprintable": (
        "not in the patch: the edit of {file}:{line} has characters that do not show.\nMake it by hand.",
        "未写入补丁：对 {file}:{line} 的修改含有不可显示的字符。\n请手工修改。",
    ),
    "patch-exists": (
        "{path} is there already, and --patch does not write over it.\nGive another name, or remove it.",
        "{path} 已存在，--patch 不会覆盖。\n请换一个名称或先删除它。",
    ),
    "patch-unwritten": (
        "{path} cannot be written: {error}.\nGive a path that can be.",
        "无法写入 {path}：{error}。\n请换一个可写的路径。",
    ),
    "patch-folder": (
        "--patch-folder {folder} is no folder.\nName the one that holds the port's files.",
        "--patch-folder {folder} 不是目录。\n请指定待比对网络源码所在目录。",
    ),
    "patch-and-json": (
        "--patch - and --json both write to stdout.\nGive --patch a file.",
        "--patch - 与 --json 都写到标准输出。\n请为 --patch 指定文件。",
    ),
    "repro-none": (
        "--repro: no layer is wrong by itself; nothing is written.\nName a layer with --repro-layer to have it all the same.",
        "--repro：没有任何一层自身有误，因此未写出文件。\n如仍需要，请用 --repro-layer 指定层。",
    ),
    "repro-folder-missing": (
        "--repro-layer names a layer, but not where its program goes.\nGive a folder as well: --repro FOLDER.",
        "--repro-layer 指定了层，但未指定程序的输出位置。\n请同时给出目录：--repro FOLDER。",
    ),
    "repro-exists": (
        "{script} is there already and may have been edited.\nGive another folder, or remove it first.",
        "{script} 已存在，且可能已被编辑。\n请更换目录，或先删除该文件。",
    ),
    "repro-folder": (
        "{folder} cannot be written to: {reason}.\nGive another folder with --repro.",
        "无法写入 {folder}：{reason}。\n请用 --repro 指定其他目录。",
    ),
    "repro-unwritten": (
        "{script} cannot be written: {reason}.\nGive another folder with --repro.",
        "无法写入 {script}：{reason}。\n请用 --repro 指定其他目录。",
    ),
    "repro-nothing": (
        "{layer} has no call with a recorded output on both sides, so it cannot be run by itself.\n"
        "Capture both nets without --layers, or with a pattern that takes it.",
        "{layer} 没有两侧都记录了输出的调用，无法单独运行。\n请不加 --layers 重新采集，或使用包含该层的模式。",
    ),
    "repro-operation": (
        "The operation that is wrong in {layer} cannot be run by itself: what the reference made of it is in no dump, or "
        "what it was given.\nWrite a call of it into a small net, and capture that on both sides.",
        "{layer} 中有误的算子无法单独运行：标杆的结果或其输入不在转储中。\n请将该算子写入一个小网络，并在两侧采集。",
    ),
    "repro-opaque": (
        "{layer} cannot be run by itself: an argument of it is in no dump ({kind}).\n"
        "Choose a layer inside it with --repro-layer.",
        "{layer} 无法单独运行：其某个参数不在转储中（{kind}）。\n请用 --repro-layer 选择其内部的层。",
    ),
    "repro-framework": (
        "{layer} cannot be run by itself: no program can be written for {framework}.\n"
        "Look at its values instead: `aligner show`.",
        "{layer} 无法单独运行：不支持为 {framework} 生成程序。\n请改用 `aligner show` 查看数值。",
    ),
    "show-layer-unknown": (
        "{dump} has no layer '{layer}' (it has {count}).{hint}\nRun `aligner show {dump}` for the tree of layers.",
        "{dump} 中没有层 '{layer}'（共有 {count} 层）。{hint}\n请运行 `aligner show {dump}` 查看层的树形结构。",
    ),
    "show-step-unknown": (
        "{dump} has no step {step}; its last one is {last}, and they are counted from 0.\n"
        "Capture more of them with --steps, or ask for one that is there.",
        "{dump} 中没有第 {step} 步；步数从 0 开始，最后一步为第 {last} 步。\n请用 --steps 采集更多步，或选择已有的步。",
    ),
    "show-no-counterpart": (
        "The layer '{layer}' has no counterpart in {port}.\nRun `aligner compare` to see how the layers were paired.",
        "层 '{layer}' 在 {port} 中没有对应项。\n请运行 `aligner compare` 查看各层的配对情况。",
    ),
    "show-against-alone": (
        "--against sets one layer of two dumps side by side, but no layer is named.\n"
        "Name one (`aligner show {dump} LAYER --against {port}`), or run `aligner compare {dump} {port}` for all.",
        "--against 用于并列显示两个转储中的某一层，但未指定层。\n"
        "请指定一层（`aligner show {dump} 层名 --against {port}`），或运行 `aligner compare {dump} {port}` 比对全部。",
    ),
    "show-recovered": (
        "{dump}: recovered; every record that was captured is in the file now.",
        "{dump}：已恢复；采集到的所有记录均已写入文件。",
    ),
    "values-selection": (
        "'{text}' selects nothing that is known here; wanted numbers, colons and `...` with commas between.\n"
        "For example 0,:3 is the first three elements of row 0.",
        "无法理解选择 '{text}'；应为以逗号分隔的数字、冒号和 `...`。\n例如 0,:3 表示第 0 行的前三个元素。",
    ),
    "values-outside": (
        "'{text}' lies outside an array of shape {shape}.\n"
        "Choose a place inside it, or one record of another shape with --slot.",
        "'{text}' 超出了形状为 {shape} 的数组。\n请选择数组内的位置，或用 --slot 选择其他形状的记录。",
    ),
    "notebook-layer-unknown": (
        "The comparison has no layer '{layer}' (it has {count}).{hint}\n"
        "`[pair.reference for pair in result.layers]` lists them.",
        "比对结果中没有层 '{layer}'（共有 {count} 层）。{hint}\n可用 `[pair.reference for pair in result.layers]` 列出。",
    ),
    "notebook-slot-unknown": (
        "{layer} has no record '{slot}' in this comparison.\nIt has: {known}.",
        "比对结果中 {layer} 没有记录 '{slot}'。\n现有：{known}。",
    ),
    "notebook-no-tensor": (
        "{layer} has no {which} among the compared records.\nLook at `.pairs` for what it has.",
        "比对的记录中 {layer} 没有 {which}。\n请用 `.pairs` 查看现有记录。",
    ),
    "plot-needs-matplotlib": (
        "The curves are drawn by matplotlib, which is not installed here.\n"
        "Install it (pip install 'aligner[plot]'); `result.steps` in a notebook shows the same curves without it.",
        "绘制曲线需要 `matplotlib`，当前环境没有安装。\n"
        "请安装（pip install 'aligner[plot]'）；`result.steps` 本身的显示无需它，曲线相同。",
    ),
    "plot-needs-two-axes": (
        "plot() draws on two axes, one for losses and one for norms of gradients; it was given {count}.\n"
        "Give it those of plt.subplots(2, 1), or none.",
        "plot() 需要两个坐标系，分别绘制损失与梯度范数；实际给出 {count} 个。\n"
        "请传入 plt.subplots(2, 1) 的两个坐标系，或不传。",
    ),
    "notebook-one-side": (
        "{name} stands in one of the two dumps only, so there is no second array.\nUse the side that is there.",
        "{name} 只存在于其中一个转储，没有另一侧的数组。\n请使用存在的一侧。",
    ),
    "notebook-changed": (
        "{path} has no record {name} any more: the file was written anew after the comparison.\n"
        "Compare again: aligner.compare(...).",
        "{path} 中已没有记录 {name}：该文件在比对之后被重新写入。\n请重新运行 aligner.compare(...)。",
    ),
    "doctor-python": ("{version} on {platform}, {path}", "{version}，{platform}，{path}"),
    "doctor-library": ("{name} {version}", "{name} {version}"),
    "doctor-library-old": (
        "{name} {version} is too old, {wanted} or later is needed.\nInstall it: pip install '{name}>={wanted}'",
        "{name} {version} 过旧，需要 {wanted} 或更高版本。\n请安装：pip install '{name}>={wanted}'",
    ),
    "doctor-library-broken": (
        "{name} cannot be imported: {reason}\nInstall it: pip install {name}",
        "无法导入 {name}：{reason}\n请安装：pip install {name}",
    ),
    "doctor-disk": ("{free} free in {folder}", "{folder} 可用空间 {free}"),
    "doctor-disk-little": (
        "only {free} free in {folder}.\nA dump holds every layer's output: write it elsewhere with -o, or choose layers with --layers.",
        "{folder} 仅剩 {free}。\n转储包含每一层的输出：请用 -o 写到其他位置，或用 --layers 选择部分层。",
    ),
    "doctor-disk-readonly": (
        "{folder} cannot be written to ({free} free).\nWrite dumps elsewhere with -o.",
        "{folder} 不可写（可用空间 {free}）。\n请用 -o 将转储写到其他位置。",
    ),
    "doctor-no-adapters": (
        "no adapter is installed, so no net can be captured.\nInstall aligner again: its own adapters come with it.",
        "未安装任何适配器，因此无法采集网络。\n请重新安装 aligner，其中自带适配器。",
    ),
    "doctor-absent": (
        "not installed: nets of {name} cannot be captured here; comparing dumps needs no framework",
        "未安装：此处无法采集 {name} 网络；比对转储不需要任何框架",
    ),
    "doctor-adapter": ("{name} {version}, adapter loaded", "{name} {version}，适配器已加载"),
    "doctor-adapter-failed": (
        "the adapter of {name} failed: {reason}\nReport this with the adapter's maintainers.",
        "{name} 的适配器出错：{reason}\n请向该适配器的维护者反馈。",
    ),
    "doctor-mindspore-numpy": (
        "MindSpore misbehaves with numpy {version}.\nInstall numpy 1: pip install 'numpy<2'",
        "MindSpore 与 numpy {version} 不兼容。\n请安装 numpy 1：pip install 'numpy<2'",
    ),
    "doctor-framework-crashed": (
        "{name} ended the process that imported it: {reason}\n"
        "Import it by itself (python -c 'import {name}') and mend its installation; the other frameworks can be used.",
        "{name} 使导入它的进程终止：{reason}\n请单独导入（python -c 'import {name}'）并修复其安装；其他框架可以使用。",
    ),
    "doctor-framework-slow": (
        "{name} did not answer within {seconds} s.\nImport it by itself (python -c 'import {name}') to see what it waits for.",
        "{name} 在 {seconds} 秒内没有响应。\n请单独导入（python -c 'import {name}'）查看其在等待什么。",
    ),
    "doctor-requirement": (
        "{package} asks for {library}{wanted}, {found} is installed.\nInstall it: pip install '{library}{wanted}'",
        "{package} 需要 {library}{wanted}，当前安装的是 {found}。\n请安装：pip install '{library}{wanted}'",
    ),
    "doctor-dump-config": (
        "MINDSPORE_DUMP_CONFIG={value} is set: every compiled run of MindSpore writes all values of its operators.\n"
        "Unset it, unless you want to import them (aligner import).",
        "已设置 MINDSPORE_DUMP_CONFIG={value}：MindSpore 每次编译运行都会写出所有算子的数据。\n"
        "除非需要导入这些数据（aligner import），否则请取消该变量。",
    ),
    "doctor-ms-jit": (
        "MS_JIT={value} is set: GRAPH_MODE and @ms.jit run as plain Python, layer by layer.\n"
        "Unset it to run or capture compiled nets.",
        "已设置 MS_JIT={value}：GRAPH_MODE 和 @ms.jit 将按普通 Python 运行。\n如需运行或采集编译后的网络，请取消该变量。",
    ),
    "doctor-variable": (
        "{name}={value} is set, which changes how nets are compiled or computed.\nUnset it unless both nets are meant to run so.",
        "已设置 {name}={value}，它会改变网络的编译或计算方式。\n除非两个网络都需如此运行，否则请取消该变量。",
    ),
    "doctor-no-chinese": (
        "Chinese cannot be shown here (encoding {encoding}): texts are in English.\n"
        "Set LANG=C.UTF-8 or PYTHONIOENCODING=utf-8 for Chinese.",
        "此处无法显示中文（编码 {encoding}），文字将使用英文。\n如需中文，请设置 LANG=C.UTF-8 或 PYTHONIOENCODING=utf-8。",
    ),
    "doctor-compare-only": (
        "no framework here: dumps can be compared and shown, nets cannot be captured",
        "此处没有框架：可以比对和查看转储，但无法采集网络",
    ),
    "help-usage": ("usage: ", "用法："),
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
