"""Messages about the packages called `mindtorch`."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {
    "mindtorch-found": (
        "the mindtorch of {maker}, {version}, on MindSpore {mindspore}",
        "{maker} 的 mindtorch {version}，运行于 MindSpore {mindspore}",
    ),
    "mindtorch-twice": (
        "{packages} are installed in one environment: both bring a package `mindtorch` and overwrite each other's "
        "files.\nUninstall both, and install one.",
        "同一环境中安装了 {packages}：两者都带有名为 `mindtorch` 的包，文件互相覆盖。\n请将两者都卸载，只安装其中一个。",
    ),
    "mindtorch-shim": (
        "MindTorch {version} does not import on this MindSpore by itself; aligner put back the four entries that it "
        "misses in MindSpore's table for `**`, which only compiled code looks at.\n"
        "To run the script without aligner: `from aligner_hooks.mindtorch_ import shim; shim.put_in()` in its first line.",
        "MindTorch {version} 在此 MindSpore 上无法自行导入；aligner 补回了它在 MindSpore `**` 运算表中找不到的四项，"
        "只有编译后的代码才会用到该表。\n"
        "若不经 aligner 运行脚本：请在首行加上 `from aligner_hooks.mindtorch_ import shim; shim.put_in()`。",
    ),
    "mindtorch-shim-put-in": (
        "MindTorch {version} needs a shim to be imported on this MindSpore; aligner puts it in by itself.\n"
        "For a script without aligner: `from aligner_hooks.mindtorch_ import shim; shim.put_in()` in its first line.",
        "MindTorch {version} 需要一段补丁才能在此 MindSpore 上导入；aligner 会自动加上。\n"
        "若不经 aligner 运行脚本：请在首行加上 `from aligner_hooks.mindtorch_ import shim; shim.put_in()`。",
    ),
    "mindtorch-no-graph-mode": (
        "The mindtorch of mindnlp cannot be compiled as a whole: it runs layer by layer in every mode.\n"
        "Capture without `--mode graph`.",
        "mindnlp 的 mindtorch 无法整体编译：在任何模式下都逐层运行。\n请去掉 `--mode graph` 再采集。",
    ),
    "mindtorch-auto-idle": (
        "auto_mixed_precision(net, 'auto') casts nothing in this run: MindTorch passes by what it put around the net, "
        "unless gradients are wanted.\n"
        "Call net.set_grad() before the run to have it cast as it does in training, or use another level.",
        "auto_mixed_precision(net, 'auto') 在此次运行中不做任何转换：若不需要梯度，MindTorch 会绕过它加在网络外的部分。\n"
        "请在运行前调用 net.set_grad()，使其像训练时一样转换；或使用其他级别。",
    ),
    "mindtorch-plain-container": (
        "Layer {layer} stands in a plain list or dict, which MindTorch does not register: "
        "its weights are in no state_dict and no optimizer has them.\n"
        "It is captured all the same; keep layers in nn.ModuleList or nn.ModuleDict.",
        "层 {layer} 位于普通列表或字典中，MindTorch 没有注册它：其权重既不在 state_dict 中，也不在优化器中。\n"
        "它仍会被采集；请用 nn.ModuleList 或 nn.ModuleDict 保存各层。",
    ),
    "mindtorch-plain-parameter": (
        "Parameter {name} of {layer} stands in a plain attribute, which MindTorch does not register.\n"
        "It is captured all the same; keep it in nn.ParameterList or nn.ParameterDict.",
        "{layer} 的参数 {name} 位于普通属性中，MindTorch 没有注册它。\n"
        "它仍会被采集；请用 nn.ParameterList 或 nn.ParameterDict 保存。",
    ),
    "mindtorch-recurrent-dropout": (
        "{layer} ({type}) drops with p={p} between its layers in eval mode too: this MindTorch never turns it off.\n"
        "Set its dropout to 0 for inference; two runs of the net differ otherwise.",
        "{layer}（{type}）在 eval 模式下各层之间仍以 p={p} 进行 dropout：此 MindTorch 从不关闭它。\n"
        "推理时请将其 dropout 设为 0，否则两次运行结果不同。",
    ),
    "mindtorch-broken": (
        "mindtorch imports, but a first small run does not work: {reason}\n"
        "Check that its MindSpore is one that it runs on; docs/mindtorch.md has the versions.",
        "mindtorch 可以导入，但首次小规模运行失败：{reason}\n请确认所用 MindSpore 是它支持的版本；版本见 docs/mindtorch.md。",
    ),
    "mindtorch-observed": ("aligner sees every layer that runs", "aligner 能看到运行的每一层"),
    "mindtorch-unobserved": (
        "Layers ran and aligner was not told: this mindtorch calls them in a way of its own.\n"
        "Use a version that docs/mindtorch.md names.",
        "各层已运行，但 aligner 没有得到通知：此 mindtorch 以自己的方式调用各层。\n请使用 docs/mindtorch.md 中列出的版本。",
    ),
    "mindtorch-hooks-silent": (
        "the forward hooks of MindTorch {version} itself never fire, nor does its debug_layer_info; aligner needs none",
        "MindTorch {version} 自身的前向钩子从不触发，debug_layer_info 也无输出；aligner 不依赖它们",
    ),
    "mindtorch-batch-norm": (
        "the BatchNorm of this mindtorch ({version}) is wrong: a fresh one in eval mode makes {made} of 3.\n"
        "It confuses its weights with its statistics; expect every BatchNorm to be named as an origin.",
        "此 mindtorch（{version}）的 BatchNorm 有误：新建并处于 eval 模式时，输入 3 得到 {made}。\n"
        "它混淆了权重与统计量；每个 BatchNorm 都会被判为误差来源。",
    ),
}
