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
    "mindspore-graph-intervene": (
        "MindSpore is in GRAPH_MODE: what a compiled net hands on cannot be replaced.\n"
        'Run it eagerly: adapter.running(net, "pynative").',
        'MindSpore 处于 GRAPH_MODE：无法替换已编译网络所传递的值。\n请以动态图运行：adapter.running(net, "pynative")。',
    ),
    "mindspore-taps-silent": (
        "This MindSpore does not tell of what happens inside a compiled graph ({reason}): a dump would be empty.\n"
        "Capture with --mode pynative (a script: with MS_JIT=0 in the environment); for the compiled net itself use MINDSPORE_DUMP_CONFIG and `aligner import`.",
        "此 MindSpore 无法观察已编译的图内部（{reason}）：转储将是空的。\n"
        "请使用 --mode pynative 采集（脚本：设置环境变量 MS_JIT=0）；若要采集编译后的网络，请使用 MINDSPORE_DUMP_CONFIG 和 `aligner import`。",
    ),
    "mindspore-untold": (
        "{layer} ({type}) cannot be observed in the compiled graph ({reason}).\n"
        "Capture with --mode pynative (a script: with MS_JIT=0 in the environment) to see it; the others are recorded.",
        "在已编译的图中无法观察 {layer}（{type}）：{reason}。\n请使用 --mode pynative 采集以查看该层（脚本：设置环境变量 MS_JIT=0）；其他层已记录。",
    ),
    "mindspore-untold-several": (
        "{count} layers cannot be observed in the compiled graph ({reason}): {layers}.\n"
        "Capture with --mode pynative (a script: with MS_JIT=0 in the environment) to see them; "
        "the others are recorded.",
        "在已编译的图中有 {count} 层无法观察（{reason}）：{layers}。\n"
        "请使用 --mode pynative 采集以查看这些层（脚本：设置环境变量 MS_JIT=0）；其他层已记录。",
    ),
    "torch-no-graph-mode": (
        "torch has no graph mode in which layers can be seen: --mode graph is for MindSpore.\n"
        "Leave it out; compiled modules are run eagerly while they are captured.",
        "torch 没有可以观察各层的静态图模式：--mode graph 仅用于 MindSpore。\n请去掉该选项；采集时已编译的模块会以动态图方式运行。",
    ),
    "mindspore-graph-cell": (
        "{layer} ({type}) runs a compiled MindIR graph: neither it nor what is inside it can be observed.\n"
        "Capture the net from which the MindIR file was exported.",
        "{layer}（{type}）运行的是已编译的 MindIR 图：它本身及其内部均无法观察。\n请采集导出该 MindIR 文件的原始网络。",
    ),
    "mindspore-own-call": (
        "{layer} ({type}) has a __call__ of its own that passes MindSpore's by: its inputs and outputs are not seen.\n"
        "Name the method construct, or call super().__call__ in it.",
        "{layer}（{type}）自定义了 __call__ 且绕过了 MindSpore 的实现：看不到它的输入和输出。\n"
        "请将该方法改名为 construct，或在其中调用 super().__call__。",
    ),
    "mindspore-direct-construct": (
        "{layer} ({type}) calls the construct of another cell directly: what that cell gets and returns is not seen.\n"
        "Call the cell itself, self.layer(x) instead of self.layer.construct(x).",
        "{layer}（{type}）直接调用了另一个 Cell 的 construct：看不到该 Cell 的输入和输出。\n"
        "请直接调用该 Cell，即用 self.layer(x) 代替 self.layer.construct(x)。",
    ),
    "mindspore-spec-unread": (
        "The settings of {layer} ({type}) could not be read ({reason}): they cannot be compared, its values can.\n"
        "Compare its constructor's arguments with the reference by hand.",
        "无法读取 {layer}（{type}）的设置（{reason}）：设置无法比较，数值仍可比较。\n请人工核对其构造参数与标杆是否一致。",
    ),
    "mindspore-run-eagerly": (
        "The script asks for GRAPH_MODE and was run eagerly, since gradients cannot be seen in a compiled net.\n"
        "To keep it compiled leave --gradients out: its forward passes are captured then.",
        "脚本要求 `GRAPH_MODE`，但由于在已编译的网络中看不到梯度，这里改以动态图运行。\n"
        "若要保持编译，请去掉 `--gradients`：此时只采集前向过程。",
    ),
    "mindspore-plain-list": (
        "'{attribute}' keeps cells in a plain list or dict: MindSpore does not count their parameters among the net's.\n"
        "They are captured all the same; use nn.CellList or nn.CellDict so that they are trained and saved.",
        "'{attribute}' 用普通的列表或字典保存 Cell：MindSpore 不会把它们的参数算作网络参数。\n"
        "这里仍会采集它们；请改用 nn.CellList 或 nn.CellDict，使其能被训练和保存。",
    ),
    "mindspore-device": (
        "The device '{name}' cannot be used with this MindSpore ({reason}); usable here: {known}.\n"
        "Choose another one with --device, or install the MindSpore built for it.",
        "此 MindSpore 无法使用设备 '{name}'（{reason}）；此处可用：{known}。\n"
        "请用 --device 选择其他设备，或安装为该设备构建的 MindSpore。",
    ),
    "mindspore-usable": (
        "MindSpore {version} runs on {device}.\nNothing to do.",
        "MindSpore {version} 可在 {device} 上运行。\n无需处理。",
    ),
    "mindspore-old": (
        "MindSpore {version} is older than 2.7, the oldest this adapter was written for.\n"
        "Install MindSpore 2.7 or later.",
        "MindSpore {version} 早于 2.7，而 2.7 是本适配器支持的最低版本。\n请安装 MindSpore 2.7 或更高版本。",
    ),
    "mindspore-numpy": (
        "MindSpore {version} is built for numpy 1 and numpy {numpy} is installed: some operators fail once per run.\n"
        'Install "numpy<2" in this environment.',
        "MindSpore {version} 基于 numpy 1 构建，而当前安装的是 numpy {numpy}：部分算子每次运行会失败一次。\n"
        '请在此环境中安装 "numpy<2"。',
    ),
    "mindspore-ascend": (
        "MindSpore {version} on Ascend, CANN {cann}. What happens inside compiled graphs was never observed there: a capture checks it first.\n"
        "If the check fails, use --mode pynative, or MINDSPORE_DUMP_CONFIG and `aligner import`.",
        "MindSpore {version} 运行于 Ascend，CANN {cann}。尚未在其上验证过对已编译图内部的观察：采集会先行检查。\n"
        "若检查失败，请使用 --mode pynative，或使用 MINDSPORE_DUMP_CONFIG 和 `aligner import`。",
    ),
    "mindspore-npu-unused": (
        "{count} NPUs are here, but MindSpore {version} runs on {device} (CANN {cann}).\n"
        "Source CANN's set_env.sh, and install the CANN that belongs to this MindSpore (its installation page lists the pairs); "
        "`mindspore.run_check()` tells more.",
        "此处有 {count} 个 NPU，但 MindSpore {version} 运行于 {device}（CANN {cann}）。\n"
        "请执行 CANN 的 set_env.sh，并安装与该 MindSpore 配套的 CANN（配套关系见其安装页面）；`mindspore.run_check()` 可给出更多信息。",
    ),
    "mindspore-operators": (
        "MindSpore imports, but a first small run does not work: {reason}\n"
        "Check its log above, the versions of numpy and protobuf, and the device.",
        "MindSpore 可以导入，但首次小规模运行失败：{reason}\n请检查上方日志、numpy 和 protobuf 的版本以及设备。",
    ),
    # torch
    "torch-plain-container": (
        "Layer {layer} stands in a plain list or dict, which torch does not register: "
        "its weights are in no state_dict and no optimizer has them.\n"
        "It is captured all the same; keep layers in nn.ModuleList or nn.ModuleDict.",
        "层 {layer} 位于普通列表或字典中，torch 没有注册它：其权重既不在 state_dict 中，也不在优化器中。\n"
        "它仍会被采集；请用 nn.ModuleList 或 nn.ModuleDict 保存各层。",
    ),
    "torch-plain-parameter": (
        "Parameter {name} of {layer} stands in a plain attribute, which torch does not register.\n"
        "It is captured all the same; keep it in nn.ParameterList or nn.ParameterDict.",
        "{layer} 的参数 {name} 位于普通属性中，torch 没有注册它。\n"
        "它仍会被采集；请用 nn.ParameterList 或 nn.ParameterDict 保存。",
    ),
    "torch-scripted": (
        "{layer} is scripted or traced: the layers inside it run in C++ and cannot be observed.\n"
        "Capture the net before torch.jit.script or torch.jit.trace to see them.",
        "{layer} 经过 script 或 trace：其内部各层在 C++ 中运行，无法观察。\n"
        "请在 torch.jit.script 或 torch.jit.trace 之前采集网络。",
    ),
    "torch-lazy": (
        "{layer} is a lazy layer whose parameters have no shape yet.\n"
        "Run the net once before capturing it to have them in the dump.",
        "{layer} 是惰性层，其参数尚无形状。\n请先运行一次网络再采集，使其进入转储。",
    ),
    "torch-fused-attention": (
        "In eval mode without gradients torch runs attention layers like {layer} as one fused kernel, "
        "and the layers inside do not run.\n"
        "To see them: torch.backends.mha.set_fastpath_enabled(False), which can change the last bits; "
        "a factory (FILE.py:NAME) is run so.",
        "在 eval 模式且无梯度时，torch 会把 {layer} 这类注意力层作为一个融合算子运行，其内部各层不会运行。\n"
        "若要看到它们：torch.backends.mha.set_fastpath_enabled(False)，最低几位可能改变；工厂函数（FILE.py:NAME）即以此方式运行。",
    ),
    "torch-compiled": (
        "The net was compiled by torch.compile; while captured it runs eagerly where torch can be told so "
        "(here: {can_stop}), which can change the last bits.\n"
        "If that is False, capture the net before compiling it: compiled layers cannot be observed.",
        "网络经过 torch.compile 编译；若 torch 允许（此处：{can_stop}），采集时以 eager 方式运行，最低几位可能不同。\n"
        "若为 False，请在编译之前采集：编译后的层无法观察。",
    ),
    "torch-device-unknown": (
        "'{device}' is not a device that torch can be told to use here; known are: {known}.\n"
        "Choose one of these with --device.",
        "'{device}' 不是此处可指定给 torch 的设备；可用名称：{known}。\n请用 --device 选择其中之一。",
    ),
    "torch-device-absent": (
        "The device '{device}' cannot be used by this torch: {reason}.\n"
        "Use --device cpu, or install the torch and driver for it.",
        "此 torch 无法使用设备 '{device}'：{reason}。\n请使用 --device cpu，或安装相应的 torch 与驱动。",
    ),
    "torch-imitated": (
        "What is imported as torch is not PyTorch but an imitation: {file}.\n"
        "Capture the reference in an environment where `import torch` finds PyTorch.",
        "以 torch 之名导入的并非 PyTorch，而是其替代实现：{file}。\n请在 `import torch` 能找到 PyTorch 的环境中采集标杆。",
    ),
    "torch-npu": ("torch_npu {torch_npu}, CANN {cann}", "torch_npu {torch_npu}，CANN {cann}"),
    "torch-npu-mismatch": (
        "torch_npu {torch_npu} is made for another torch than {torch}.\n"
        "Install the torch_npu whose first two numbers are those of torch: pip install torch_npu=={torch}",
        "torch_npu {torch_npu} 与 torch {torch} 不匹配。\n请安装前两位版本号与 torch 相同的 torch_npu：pip install torch_npu=={torch}",
    ),
    "torch-npu-unusable": (
        "torch_npu {torch_npu} is installed but cannot be used: {reason}\n"
        "Source CANN's set_env.sh first, and check the driver with npu-smi info.",
        "已安装 torch_npu {torch_npu}，但无法使用：{reason}\n请先执行 CANN 的 set_env.sh，并用 npu-smi info 检查驱动。",
    ),
    "torch-found": ("torch {version} on Python {python}", "torch {version}，Python {python}"),
    "torch-numpy-works": ("torch and numpy {numpy} exchange arrays", "torch 与 numpy {numpy} 可交换数组"),
    "torch-numpy-broken": (
        "torch cannot exchange arrays with numpy {numpy}: {reason}\n"
        "Install a numpy that this torch was built for (torch before 2.3 needs numpy<2).",
        "torch 无法与 numpy {numpy} 交换数组：{reason}\n请安装与该 torch 匹配的 numpy（2.3 之前的 torch 需要 numpy<2）。",
    ),
    "torch-gpu": ("{count} GPU(s) usable by torch, first: {name}", "torch 可用 GPU {count} 个，第一个：{name}"),
    "torch-no-gpu": ("torch sees no GPU; it runs on the CPU", "torch 未发现 GPU，在 CPU 上运行"),
    "torch-no-stance": (
        "torch {version} cannot be told to leave out torch.compile.\n"
        "Capture nets before compiling them, or use torch 2.6 or later.",
        "torch {version} 无法被要求跳过 torch.compile。\n请在编译之前采集网络，或使用 torch 2.6 及以上版本。",
    ),
}
