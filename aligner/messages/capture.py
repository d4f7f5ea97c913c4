"""Messages about capturing."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {
    "capture-progress": (
        "step {step}: {done} of {total} layers, {size} ({speed}/s), about {expected} in all; {layer}",
        "第 {step} 步：{done}/{total} 层，{size}（{speed}/s），预计共约 {expected}；{layer}",
    ),
    "capture-progress-of": (
        "step {number} of {steps}: {done} of {total} layers, {size} ({speed}/s), about {expected} in all; {layer}",
        "第 {number}/{steps} 步：{done}/{total} 层，{size}（{speed}/s），预计共约 {expected}；{layer}",
    ),
    "edits-progress": (
        "looking for the change that puts {layer} right: edits run {trials}",
        "正在寻找能改正 {layer} 的修改：已试验 {trials} 处",
    ),
    "file-missing": (
        "{path}: no such file.\nGive the path of the file that defines the net.",
        "{path}：文件不存在。\n请给出定义网络的文件路径。",
    ),
    "module-missing": (
        "There is no module '{module}' to import here.\n"
        "Give a path (net.py:build), or run this in the folder that holds the package.",
        "此处没有可导入的模块 '{module}'。\n请给出文件路径（net.py:build），或在包含该包的目录下运行。",
    ),
    "target-form": (
        "{text} names no factory: wanted FILE.py:NAME or package.module:NAME, with the bare name of one function.\n"
        "Write it like this: {example}.",
        "{text} 不是工厂函数的写法；应为 FILE.py:NAME 或 package.module:NAME，其中 NAME 只是一个函数名。\n请写成：{example}。",
    ),
    "target-not-python": (
        "{path} is a file whose name does not end in .py, so it was looked for as a module, and there is none.\n"
        "Rename the file to {path}.py and give that.",
        "{path} 是文件，但文件名不以 .py 结尾，因此按模块查找，而没有该模块。\n请将文件改名为 {path}.py 后再指定。",
    ),
    "target-folder": (
        "{path} is a folder, and a factory stands in a file.\nGive the file inside it: {path}/net.py:{name}.",
        "{path} 是目录，而工厂函数应在文件中。\n请给出其中的文件：{path}/net.py:{name}。",
    ),
    "factory-not-callable": (
        "{target}: '{name}' is a value of type {kind}, not a function; its functions: {names}.\n"
        "Name a function without arguments that returns the model, or (model, inputs).",
        "{target}：'{name}' 是 {kind} 类型的值，不是函数；现有函数：{names}。\n请指定一个无参数、返回模型或 (模型, 输入) 的函数。",
    ),
    "factory-is-model": (
        "{target} is a model itself ({kind}), and wanted is a function that returns one.\n"
        "Write one below it: def build(): return {name}, (x,)",
        "{target} 本身就是模型（{kind}），而这里需要返回模型的函数。\n请在其下写一个函数：def build(): return {name}, (x,)",
    ),
    "factory-missing": (
        "{target}: there is no function '{name}' in it; it has: {names}.\n"
        "Name a function without arguments that returns the model, or (model, inputs).",
        "{target}：其中没有函数 '{name}'；现有：{names}。\n请指定一个无参数、返回模型或 (模型, 输入) 的函数。",
    ),
    "factory-arguments": (
        "{target} needs arguments ({needed}), and a factory is called without any.\n"
        "Write a function of no arguments that returns {needed} filled in: def build(): return ...",
        "{target} 需要参数（{needed}），而工厂函数会被无参调用。\n请写一个无参函数并在其中填好 {needed}：def build(): return ...",
    ),
    "factory-tuple": (
        "The factory returned a tuple of {length}; wanted: the model, (model, inputs), or aligner.Task.\n"
        "Put several inputs into one inner tuple: return net, (x, mask); what is given by name into a dict behind it.",
        "工厂函数返回了长度为 {length} 的元组；需要：模型、(模型, 输入) 或 aligner.Task。\n多个输入请放进一个内层元组：return net, (x, mask)；按名字传入的放进其后的字典。",
    ),
    "factory-none": (
        "The factory returned None; wanted: the model, (model, inputs), or aligner.Task.\n"
        "Does it end with `return net, inputs`?",
        "工厂函数返回了 None；需要：模型、(模型, 输入) 或 aligner.Task。\n函数末尾是否有 `return net, inputs`？",
    ),
    "factory-raised": (
        "{target} raised {error} (the traceback above is its own).\nMend that first: nothing was captured.",
        "{target} 抛出了 {error}（上面的回溯来自它自身）。\n请先修复该错误：没有采集任何内容。",
    ),
    "model-raised": (
        "The net raised {error} while it ran (the traceback above is its own).\n"
        "{records} values up to there are in {path}: `aligner show {path}`.",
        "网络运行时抛出了 {error}（上面的回溯来自它自身）。\n此前的 {records} 个值已存入 {path}：`aligner show {path}`。",
    ),
    "torch-is-elsewhere": (
        "PyTorch ran here while {found} stands in its place: `torch` was imported before the line that puts it there.\n"
        "Write that line (from mindtorch.tools import mstorch_enable) first of all.",
        "此处运行的是 PyTorch，而 {found} 已顶替其名：`torch` 在顶替之前就已导入。\n"
        "请把顶替的那一行（from mindtorch.tools import mstorch_enable）写在最前面。",
    ),
    "lost-in-rewriting": (
        "MindSpore has written this class anew to put casts into it (AMP level O1, or lists of operators), and its copy "
        "does not know {name}.\n"
        "If your file defines {name} beside the class, keep it in the cell: self.{name} = {name} in __init__, and use that. "
        "Else it was lost by MindSpore itself. The levels O2, O3 and auto write no class anew.",
        "MindSpore 为插入类型转换而重写了这个类（AMP 级别 O1，或算子名单），重写后的副本不认识 {name}。\n"
        "若 {name} 定义在文件中、类之外，请存入该 Cell：在 __init__ 中写 self.{name} = {name}，并改用它。"
        "否则就是 MindSpore 自身弄丢的。O2、O3 和 auto 级别不重写类。",
    ),
    "training-without-loss": (
        "The task has an optimizer and no loss, so there is nothing to take gradients of.\n"
        "Give it one: `Task(model, inputs, loss=loss_fn, optimizer=optimizer)`, where loss_fn(output, label) is a scalar.",
        "该任务有优化器却没有损失函数，无从求梯度。\n"
        "请给出损失函数：`Task(model, inputs, loss=loss_fn, optimizer=optimizer)`，其中 `loss_fn(output, label)` 返回标量。",
    ),
    "training-without-label": (
        "The task has a loss, and inputs without a label to give to it.\n"
        "The last item of each tuple is the label: `Task(model, (x, label), loss=loss_fn, ...)`.",
        "该任务有损失函数，但输入中没有可交给它的标签。\n每个元组的最后一项是标签：`Task(model, (x, label), loss=loss_fn, ...)`。",
    ),
    "training-accumulate": (
        "The task's accumulate is {found}; it is how many batches one update is made of, a whole number from 1 on.",
        "该任务的 accumulate 为 {found}；它表示一次更新由多少个批次累积而成，应为不小于 1 的整数。",
    ),
    "training-other-batches": (
        "An update of {reference} is made of this many batches: {found}; one of the port's task of {accumulate}.\n"
        "Give the port's Task the reference's accumulate; a reference without a training cannot be trained on.",
        "{reference} 的一次更新由这么多个批次构成：{found}；待比对任务为 {accumulate}。\n"
        "请让待比对 Task 的 accumulate 与标杆一致；没有训练的标杆无法用于训练比对。",
    ),
    "training-unknown": (
        "Training steps of {framework} {version} cannot be captured: it does not tell of gradients and updates.\n"
        "Without --gradients the forward passes are captured.",
        "无法采集 {framework} {version} 的训练步骤：它不提供梯度与参数更新的信息。\n不加 --gradients 时将采集前向过程。",
    ),
    "gradients-need-loss": (
        "--gradients was given, and {target} returned no loss to take gradients of.\n"
        "Return `aligner.Task(model, inputs, loss=loss_fn, optimizer=optimizer)`, or capture your training script.",
        "给出了 --gradients，但 {target} 没有返回可求梯度的损失函数。\n"
        "请返回 `aligner.Task(model, inputs, loss=loss_fn, optimizer=optimizer)`，或直接采集训练脚本。",
    ),
    "inputs-missing": (
        "{target} returned a model without inputs, and none were given.\n"
        "Return (model, inputs), or add --inputs FILE.npz, or --from REF.h5 to use the reference's.",
        "{target} 只返回了模型而没有输入，也没有另外给出输入。\n请返回 (模型, 输入)，或加 --inputs FILE.npz，或用 --from REF.h5 使用标杆的输入。",
    ),
    "input-dtype": (
        "An input is a numpy array of {dtype}, and {framework} has no tensor of that type.\n"
        "Convert it first, for example with .astype('float32').",
        "有一个输入是 {dtype} 类型的 numpy 数组，而 {framework} 没有该类型的张量。\n请先转换，例如 .astype('float32')。",
    ),
    "inputs-not-npz": (
        "{path}: cannot be read as inputs: {reason}.\nWrite it with numpy.savez(path, x, mask) or with names.",
        "{path}：无法作为输入读取：{reason}。\n请用 numpy.savez(path, x, mask) 写入，也可以带名字。",
    ),
    "no-layer-matched": (
        "No layer matches {patterns} among {count} layers (the first are {some}).\n"
        "Patterns are dotted paths with * and ?; quote them in the shell.",
        "{count} 个层中没有一个匹配 {patterns}（前几个为 {some}）。\n模式为带 * 和 ? 的点分路径；在 shell 中请加引号。",
    ),
    "steps-form": (
        "steps is {found}; wanted: a whole number from 1 on, or None for all runs.\nGive how many runs to record.",
        "steps 为 {found}；应为从 1 起的整数，或 None 表示全部运行。\n请给出要记录的运行次数。",
    ),
    "nothing-ran": (
        "{model} was never called, so there is nothing to compare; no dump was written.\n"
        "Call it inside the capture, as net(x): net.forward(x) and net.construct(x) pass the hooks by.",
        "{model} 从未被调用，没有可比对的内容；未写入转储。\n请在采集范围内以 net(x) 调用它：net.forward(x) 与 net.construct(x) 会绕过钩子。",
    ),
    "no-model-ran": (
        "No model ran in {script}, so nothing was captured.\n"
        "A net in another process cannot be seen, nor one in a script that ends before it is called. Call it as net(x), or use a factory: FILE.py:NAME.",
        "{script} 中没有模型运行，未采集任何内容。\n其他进程中的网络不可见；脚本在调用网络之前结束时也是如此。请以 net(x) 调用，或使用工厂函数：FILE.py:NAME。",
    ),
    "only-bare-ran": (
        "Only {ran} ran in {script}, and nothing of it has a parameter, so it was taken for a loss or the like.\n"
        "If it is the net, say so: --model {first}.",
        "{script} 中只运行了 {ran}，而它们都没有参数，因此被当作损失函数之类而未采集。\n若它就是要采集的网络，请指定：--model {first}。",
    ),
    "model-not-found": (
        "No model called '{wanted}' ran in {script}; these did: {ran}.\nChoose one of them with --model.",
        "{script} 中没有名为 '{wanted}' 的模型运行；运行过的有：{ran}。\n请用 --model 选择其中之一。",
    ),
    "other-models-ran": (
        "Captured {model}; these ran too and were left out: {others}. Choose one with --model.",
        "已采集 {model}；以下模型也运行过但未采集：{others}。可用 --model 选择。",
    ),
    "more-steps-ran": (
        "Captured the first {steps} run(s) of {model}; it ran on unobserved. More with --steps.",
        "已采集 {model} 的前 {steps} 次运行；之后的运行未被观察。可用 --steps 增加。",
    ),
    "script-missing": (
        "{path}: no such script.\nGive a script (train.py), -m MODULE, or a factory (net.py:build).",
        "{path}：脚本不存在。\n请给出脚本（train.py）、-m MODULE 或工厂函数（net.py:build）。",
    ),
    "script-folder": (
        "{path} is a folder without __main__.py, so Python cannot run it.\nGive the script inside it.",
        "{path} 是没有 __main__.py 的目录，Python 无法运行。\n请给出其中的脚本。",
    ),
    "script-shadow": (
        "{path} has the name of this tool ({name}), and your script would import the wrong one.\n"
        "Rename it, then capture again.",
        "{path} 与本工具同名（{name}），你的脚本会导入错误的模块。\n请重命名后再采集。",
    ),
    "value-unreadable": ("{slot}: its values could not be read: {reason}", "{slot}：无法读取其值：{reason}"),
    "dtype-unknown": (
        "{slot}: values of type {dtype} cannot be stored, so this one is not in the dump",
        "{slot}：类型 {dtype} 的值无法存储，未写入转储",
    ),
    "other-thread": (
        "called from another thread than the net itself; those calls are not recorded",
        "在与网络本身不同的线程中被调用；这些调用未被记录",
    ),
    "random-numbers": (
        "the net drew random numbers while it ran (dropout, sampling): two runs will differ",
        "网络运行时使用了随机数（dropout、采样）：两次运行结果会不同",
    ),
    "dropout-active": (
        "Dropout was active in train mode ({layers}), so the values are random.\n"
        "Capture in eval mode, or with --silence-dropout.",
        "训练模式下 dropout 处于激活状态（{layers}），数值是随机的。\n请在 eval 模式下采集，或使用 --silence-dropout。",
    ),
    "captured": (
        "{path}: {records} values of {layers} layers in {steps} step(s), {size}, {seconds} s",
        "{path}：{layers} 层、{steps} 步，共 {records} 个值，{size}，{seconds} 秒",
    ),
    "known-size": (
        "{model}: {layers} layers, parameters {parameters}; {free} free where the dump goes",
        "{model}：{layers} 层，参数 {parameters}；转储所在磁盘剩余 {free}",
    ),
    "estimate": (
        "{model}: a dump of {steps} step(s) would hold {records} values, {size}; {free} free there",
        "{model}：{steps} 步的转储将包含 {records} 个值，{size}；所在磁盘剩余 {free}",
    ),
    "estimate-training": (
        "{model}: a dump of {steps} steps of training would hold about {records} values, {size}, and take {time} (h:mm:ss), "
        "by the first {measured}; {free} free there\n"
        "weights {weights}; each step {step}: values of layers {forward}, gradients {backward}, parameters and the "
        "optimizer's state {update}",
        "{model}：{steps} 步训练的转储约含 {records} 个值，{size}，用时约 {time}（时:分:秒），按前 {measured} 步估计；"
        "所在磁盘剩余 {free}\n"
        "权重 {weights}；每步 {step}：各层的值 {forward}，梯度 {backward}，参数与优化器状态 {update}",
    ),
    "estimate-forced": (
        "the forced pass and the search for causes come on top",
        "强制对齐运行与原因查找的用时另计",
    ),
    "next-port": (
        "next: aligner capture PORT.py:build --from {path} -o port.h5",
        "下一步：aligner capture PORT.py:build --from {path} -o port.h5",
    ),
    "forced-told": (
        "forced pass: {checked} values checked one by one ({seconds} s); wrong by themselves: {wrong}",
        "强制对齐运行：逐一检查 {checked} 个值（{seconds} 秒），其中自身有误的：{wrong} 个",
    ),
    "trials-told": (
        "trials: {trials} made ({seconds} s), {confirmed} brought the error down to rounding",
        "试验：共 {trials} 次（{seconds} 秒），其中 {confirmed} 次使误差降到舍入水平",
    ),
    "next-compare": ("next: aligner compare {reference} {path}", "下一步：aligner compare {reference} {path}"),
    "option-needs-factory": (
        "{option} works with a factory (FILE.py:NAME), not with a script.\n"
        "Write a function that returns (model, inputs), or leave the option out.",
        "{option} 只适用于工厂函数（FILE.py:NAME），不适用于脚本。\n请写一个返回 (模型, 输入) 的函数，或去掉该选项。",
    ),
    "option-needs-script": (
        "{option} works with a script, not with a factory (FILE.py:NAME).\nLeave it out.",
        "{option} 只适用于脚本，不适用于工厂函数（FILE.py:NAME）。\n请去掉该选项。",
    ),
    "option-of-reference": (
        "{option} measures the reference's own rounding, and --from makes this the port.\n"
        "Give it when the reference is captured.",
        "{option} 用于测量标杆自身的舍入误差，而 --from 表示这是待比对网络。\n请在采集标杆时使用。",
    ),
    "option-needs-from": (
        "{option} is about a port, and no reference was given.\nAdd --from REF.h5, or leave the option out.",
        "{option} 用于待比对网络，但没有给出标杆。\n请加上 --from REF.h5，或去掉该选项。",
    ),
    "target-missing": (
        "Nothing to capture was given.\nGive FILE.py:NAME, a script, or -m MODULE; `aligner capture --help` has examples.",
        "没有给出要采集的对象。\n请给出 FILE.py:NAME、脚本或 -m MODULE；示例见 `aligner capture --help`。",
    ),
    "output-is-reference": (
        "{path} is both the reference to replay and the dump to write.\nGive the port's dump another name with -o.",
        "{path} 既是要回放的标杆，又是要写入的转储。\n请用 -o 为待比对网络的转储另取一个名字。",
    ),
    "weights-changed": (
        "The weights were changed while the net was captured, first seen in step {step}: by an optimizer, or by code of yours.\n"
        "What ran on weights that are not those recorded is not judged layer by layer; everything before is. With --gradients each training step is.",
        "采集期间网络的权重被修改（首次发现于第 {step} 步）：由优化器或你的代码所致。\n"
        "权重与所记录的不一致时得到的数值不会逐层判断；此前的数值照常判断。加上 `--gradients` 则每个训练步都会判断。",
    ),
    "caution": ("caution: {layer}: {text}", "注意：{layer}：{text}"),
    "output-after-script": (
        "-o stands after {script}, and what follows a script is the script's own.\n"
        "Put aligner's options first: aligner capture -o ref.h5 {script} ...",
        "-o 位于 {script} 之后，而脚本之后的内容都属于脚本自身。\n请把 aligner 的选项放在前面：aligner capture -o ref.h5 {script} ...",
    ),
    "output-missing": (
        "No name for the dump was given.\nAdd -o ref.h5.",
        "没有给出转储文件名。\n请加上 -o ref.h5。",
    ),
    "framework-wanted": (
        "The model is of {found}, and --framework asks for {wanted}.\nLeave --framework out: it is found from the model.",
        "模型属于 {found}，而 --framework 指定了 {wanted}。\n请去掉 --framework：框架会由模型自动识别。",
    ),
    "demo-frameworks": (
        "The demo needs PyTorch and MindSpore; not installed here: {missing}.\n"
        "Install both (pip install torch 'mindspore' 'numpy<2'), or capture your own nets on two machines.",
        "演示需要 PyTorch 和 MindSpore；此处未安装：{missing}。\n请安装两者（pip install torch 'mindspore' 'numpy<2'），或在两台机器上分别采集你自己的网络。",
    ),
    "demo-folder": (
        "{folder} is a file; the demo wants a folder.\nGive another name: aligner demo FOLDER.",
        "{folder} 是文件；演示需要目录。\n请换一个名字：aligner demo FOLDER。",
    ),
    "demo-found": (
        "That is the planted bug: {found} has eps=1e-2 in {folder}/net_mindspore.py, and 1e-5 in net_torch.py.\n"
        "Mend it there and run `aligner demo {folder}` again.",
        "这正是预埋的错误：{folder}/net_mindspore.py 中 {found} 的 eps=1e-2，而 net_torch.py 中为 1e-5。\n请在该文件中修正，然后再次运行 `aligner demo {folder}`。",
    ),
    "demo-mended": (
        "The port in {folder} is mended: no layer differs any more.\n"
        "Delete {folder} to start over with the mistake in {planted}.",
        "{folder} 中的移植已修正：不再有层超差。\n删除 {folder} 可重新演示 {planted} 中的错误。",
    ),
    "demo-other": (
        "The demo expected {planted} and found: {found}.\n"
        "If you changed the nets in {folder}, that is yours to judge; otherwise please report it.",
        "演示预期为 {planted}，实际得到：{found}。\n如果你修改过 {folder} 中的网络，请自行判断；否则请报告该问题。",
    ),
}
