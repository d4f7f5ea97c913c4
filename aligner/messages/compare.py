"""Messages about compare."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {
    "rule-unknown": (
        "There is no rule '{rule}'; the rules are: {known}.\nChoose one of these with --rule.",
        "没有名为 '{rule}' 的规则；可用的规则有：{known}。\n请用 --rule 选择其中之一。",
    ),
    "tolerance-invalid": (
        "The tolerance must be a number from 0 up, not {value}.\nGive one such as --tolerance 1e-3.",
        "容差必须是不小于 0 的数，而不是 {value}。\n请给出例如 --tolerance 1e-3。",
    ),
    "map-unreadable": (
        "The layer map {path} cannot be read: {reason}.\nGive a text file with lines 'REF = PORT', or JSON.",
        "无法读取层映射文件 {path}：{reason}。\n请提供每行为 'REF = PORT' 的文本文件或 JSON 文件。",
    ),
    "map-line": (
        "Line {line} of the layer map {path} is not 'REF = PORT': {text}\n"
        "Write one pair of layers or prefixes per line; # begins a comment.",
        "层映射文件 {path} 的第 {line} 行不是 'REF = PORT' 的形式：{text}\n请每行写一对层或前缀；# 之后为注释。",
    ),
    "map-json": (
        "The layer map {path} is not an object of names or a list of pairs of names: {reason}.\n"
        'Write {{"encoder.0": "layers.0"}} or [["encoder.0", "layers.0"]].',
        "层映射文件 {path} 既不是名称对象，也不是名称对的列表：{reason}。\n"
        '请写成 {{"encoder.0": "layers.0"}} 或 [["encoder.0", "layers.0"]]。',
    ),
    "map-unknown": (
        "The layer map{place} names '{name}', which is no layer or parameter of the {side}; close ones: {close}.\n"
        "Run `aligner show` on the dump for its layers and mend the map.",
        "层映射{place} 中的 '{name}' 不是 {side} 中的层或参数；相近的有：{close}。\n"
        "请对转储运行 `aligner show` 查看各层并修正映射。",
    ),
    "map-nothing": (
        "The pattern '{name}' of the layer map{place} fits no layer or parameter of the {side}; close ones: {close}.\n"
        "* is one part of a name between dots; mend the pattern.",
        "层映射{place} 中的模式 '{name}' 不匹配 {side} 中的任何层或参数；相近的有：{close}。\n"
        "* 表示名称中以点分隔的一个部分；请修正该模式。",
    ),
    "map-stars": (
        "The layer map{place} has '{reference} = {port}' with another number of * on either side.\n"
        "Each * of the right side takes what the same one of the left side was: write as many on both.",
        "层映射{place} 中的 '{reference} = {port}' 两侧的 * 个数不同。\n右侧的每个 * 取左侧对应 * 的内容：请使两侧个数相同。",
    ),
    "map-twice": (
        "The layer map{place} gives {port} of the port to {other}, and it belongs to {one} already.\n"
        "Give each layer one counterpart.",
        "层映射{place} 把待比对侧的 {port} 指派给 {other}，但它已属于 {one}。\n请让每一层只有一个对应层。",
    ),
    "map-shapes": (
        "The map says that {reference} is {port}, but their shapes are {wanted} and {found}.\n"
        "Mend that pair: these weights cannot be the same.",
        "映射指定 {reference} 对应 {port}，但两者的形状为 {wanted} 和 {found}。\n请修正这一对：它们不可能是相同的权重。",
    ),
    "map-exists": (
        "There is a file {path} already, which may have been corrected by hand.\nGive --write-map another name.",
        "文件 {path} 已存在，可能经过手工修正。\n请为 --write-map 指定其他名称。",
    ),
    "map-unwritable": (
        "The map cannot be written to {path}: {reason}.\nGive --write-map a name in a folder that can be written.",
        "无法把映射写入 {path}：{reason}。\n请为 --write-map 指定可写文件夹中的名称。",
    ),
    "map-written": (
        "map: {path} holds the {count} pairs that were used; correct it and give it back with --map {path}",
        "映射：{path} 中是所用的 {count} 对；修正后可用 --map {path} 交回",
    ),
    "nothing-matched": (
        "No layer of {reference_model} in {reference} has a counterpart in {port_model} in {port}: these are two models.\n"
        "Check that both dumps are of the same net; if its layers only have other names, give --map.",
        "{reference} 中的 {reference_model} 没有任何层能与 {port} 中的 {port_model} 配对：它们是两个不同的模型。\n"
        "请确认两个转储来自同一网络；如果只是层名不同，请使用 --map。",
    ),
    "pairs-too-many": (
        "These dumps hold {count} pairs of records, and a comparison takes {limit} at most.\n"
        "Capture fewer steps (--steps) or layers (--layers) on both sides.",
        "这两个转储共有 {count} 对记录，一次比对最多 {limit} 对。\n请在两侧减少采集的步数（--steps）或层（--layers）。",
    ),
    "values-repeated": (
        "Comparing these dumps would read {total} bytes out of {there} that they hold: each array is set against more than "
        "{limit} others, which no net does.\nCapture both again; if somebody sent you one, do not trust it.",
        "比对这两个转储需要读取 {total} 字节，而其中只存有 {there} 字节：每个数组要与 {limit} 个以上的数组比对，任何网络都不会如此。\n"
        "请重新采集两者；若文件由他人提供，请勿信任。",
    ),
    "only-reference": (
        "Only the reference has this.\nIf that is meant, allow it with --allow-unmatched; else look for it in the port.",
        "仅标杆中存在。\n如属预期，请用 --allow-unmatched 允许；否则请在待比对网络中查找。",
    ),
    "only-reference-ended": (
        "Only the reference has this: the port's capture ended early.\nCapture the port again, to its end.",
        "仅标杆中存在：待比对网络的采集提前结束。\n请重新采集待比对网络，直至结束。",
    ),
    "not-run": (
        "The {side} had stopped before it came to this.\nMend what made it stop, and capture it again.",
        "{side}在此之前已经停止。\n请先修复使其停止的问题，再重新采集。",
    ),
    "only-port-ended": (
        "Only the port has this: the reference's capture ended early.\nCapture the reference again, to its end.",
        "仅待比对网络中存在：标杆的采集提前结束。\n请重新采集标杆，直至结束。",
    ),
    "only-port": (
        "Only the port has this.\nIf that is meant, allow it with --allow-unmatched; else look for it in the reference.",
        "仅待比对网络中存在。\n如属预期，请用 --allow-unmatched 允许；否则请在标杆中查找。",
    ),
    "unmatched-left-out": (
        "The other dump was captured without this (--layers, --no-weights), or it was imported and does not tell.",
        "另一个转储采集时未包含此项（--layers、--no-weights），或者它是导入的，无法得知此项。",
    ),
    "unmatched-one-sided": (
        "Only this side's layer hands this out: it was not compared. What is made of it shows in the layers behind.",
        "仅本侧的层给出此值，未作比对；由它得到的结果会在其后的层中体现。",
    ),
    "one-sided": (
        "Not compared, for the {side} alone gives it: {names} ({count} in all).",
        "未作比对（仅由{side}给出）：{names}（共 {count} 个）。",
    ),
    "outputs-lacking": (
        "Of the net's own outputs the port does not give {slots} ({count} in all).\nHave it return what is used of them.",
        "标杆网络自身的输出中，待比对网络未给出 {slots}（共 {count} 个）。\n若需使用，请让待比对网络返回它们。",
    ),
    "outputs-none": (
        "The port gives none of the net's own outputs ({slots}): only what ran inside was compared.\n"
        "Have the port return what the reference returns.",
        "待比对网络未给出标杆网络自身的任何输出（{slots}），仅比对了内部数据。\n请让待比对网络返回与标杆相同的结果。",
    ),
    "outputs-unseen": (
        "What the reference's net returns could not be looked into: {kinds}. What ran inside was compared.\n"
        "Have it return tensors, or a tuple, dict or dataclass of them.",
        "无法查看标杆网络的返回值：{kinds}。内部数据已比对。\n请返回张量，或由张量组成的元组、字典。",
    ),
    "outputs-order": (
        "The port gives the net's outputs in another order: {slots} stand elsewhere.\nUse the reference's order.",
        "待比对网络输出的顺序不同：{slots} 的位置不同。\n请使用与标杆相同的顺序。",
    ),
    "outputs-arranged": (
        "The port hands out the net's outputs in another arrangement: their numbers were compared, not their places.",
        "待比对网络输出的排列方式不同：仅比对了数值，未比对其位置。",
    ),
    "unmatched-behind": (
        "Only one side has this as a layer; what comes before it already disagrees, so its effect cannot be judged.\n"
        "Mend the origin first, then compare again.",
        "仅一侧把它写成层；其之前的数值已不一致，无法判断其影响。\n请先修复误差源，再重新比对。",
    ),
    "short-matmul-conv": (
        "the {side} multiplied and convolved float32 in {type} ({device}): about 1e-3 of a layer's scale is that rounding.\n"
        "To compare in float32, set {change} and capture again.",
        "{side} 一侧在 {device} 上以 {type} 计算 float32 的矩阵乘和卷积：约为层数值尺度 1e-3 的误差来自该舍入。\n"
        "如需以 float32 比对，请设置 {change} 后重新采集。",
    ),
    "short-matmul": (
        "the {side} multiplied float32 matrices in {type} ({device}): about 1e-3 of a layer's scale is that rounding.\n"
        "To compare in float32, set {change} and capture again.",
        "{side} 一侧在 {device} 上以 {type} 计算 float32 的矩阵乘：约为层数值尺度 1e-3 的误差来自该舍入。\n"
        "如需以 float32 比对，请设置 {change} 后重新采集。",
    ),
    "short-conv": (
        "the {side} convolved float32 in {type} ({device}): about 1e-3 of a layer's scale is that rounding.\n"
        "To compare in float32, set {change} and capture again.",
        "{side} 一侧在 {device} 上以 {type} 计算 float32 的卷积：约为层数值尺度 1e-3 的误差来自该舍入。\n"
        "如需以 float32 比对，请设置 {change} 后重新采集。",
    ),
    "precision-mode": (
        "the port ran with precision_mode '{mode}', which lets CANN compute in shorter types than the net says.\n"
        'To compare, set mindspore.device_context.ascend.op_precision.precision_mode("must_keep_origin_dtype").',
        "待比对网络以 precision_mode '{mode}' 运行，CANN 可能以比网络声明更短的类型计算。\n"
        '比对时请设置 mindspore.device_context.ascend.op_precision.precision_mode("must_keep_origin_dtype")。',
    ),
    "shapes-differ": (
        "The reference's shape is {reference}, the port's {port}.\nCompare the two layers' settings and inputs.",
        "标杆的形状为 {reference}，待比对的形状为 {port}。\n请核对两层的设置与输入。",
    ),
    "shapes-differ-same-count": (
        "The reference's shape is {reference}, the port's {port}, with as many elements: a transpose or reshape is missing.\n"
        "Bring the port's tensor into the reference's layout.",
        "标杆的形状为 {reference}，待比对的形状为 {port}，元素个数相同：缺少转置或变形。\n请把待比对张量调整为标杆的布局。",
    ),
    "number-differs": (
        "{slot} is the number {port}, the reference's {reference}.\nLook where the port's code takes it from.",
        "{slot} 为数值 {port}，标杆为 {reference}。\n请核对待比对代码中该数值的来源。",
    ),
    "complex-and-real": (
        "The reference is {reference} and the port {port}: one is complex.\nBring both to the same kind of number.",
        "标杆为 {reference}，待比对为 {port}：其中之一是复数。\n请使两侧的数值类型一致。",
    ),
    "dump-incomplete": (
        "The capture of the {side} {path} did not end well; what was captured until then is compared.",
        "{side} 转储 {path} 的采集没有正常结束；只比对此前已采集的内容。",
    ),
    "weights-not-compared": (
        "The {side} {path} was captured with --no-weights: a layer that looks wrong may only have other weights.\n"
        "Capture it again without --no-weights.",
        "{side} 转储 {path} 采集时使用了 --no-weights：看似有误的层可能只是权重不同。\n请不加 --no-weights 重新采集。",
    ),
    "mode-differs": (
        "{count} layers that depend on the mode differ in it, first {layer}: {reference} in the reference, {port} in the port.\n"
        "Call eval() and set_train(False) on the whole nets.",
        "有 {count} 个依赖运行模式的层模式不同，首先是 {layer}：标杆为 {reference}，待比对为 {port}。\n"
        "请对整个网络调用 eval() 与 set_train(False)。",
    ),
    "amp-differs": (
        "AMP differs: {reference} in the reference, {port} in the port.\n"
        "Errors up to the shorter type's round-off are to be expected.",
        "混合精度设置不同：标杆为 {reference}，待比对为 {port}。\n误差可达较低精度类型的舍入误差。",
    ),
    "near-overflow": (
        "{layer} {slot} comes near float16's largest number, 65504: the reference reaches {largest}"
        " ({count} such values in all).\nOther data may overflow: compute this in float32, or scale before it.",
        "{layer} 的 {slot} 接近 float16 的最大值 65504：标杆达到 {largest}（此类值共 {count} 处）。\n"
        "换用其他数据可能溢出：请改用 float32 计算，或在此之前先缩放。",
    ),
    "dropout-differs": (
        "Dropout differs: {reference} in the reference, {port} in the port.\nCapture both without --keep-dropout.",
        "Dropout 状态不同：标杆为 {reference}，待比对为 {port}。\n采集时请都不要使用 --keep-dropout。",
    ),
    "steps-differ": (
        "The reference holds {reference} steps, the port {port}; those on one side only are unmatched.",
        "标杆有 {reference} 步，待比对有 {port} 步；只在一侧出现的步没有配对。",
    ),
    "nan-on-both": (
        "{count} pairs hold NaN at the same places on both sides, first {layer} {slot}; their other values were compared.",
        "有 {count} 对数据在两侧相同位置含有 NaN，首先是 {layer} 的 {slot}；其余数值已比对。",
    ),
    "no-finite-value": (
        "{count} pairs hold no finite number on either side, only NaN or Inf, first {layer} {slot}: nothing was compared there.\n"
        "Mend the reference first: look for the layer that makes the first NaN or Inf, and at its inputs.",
        "有 {count} 对数据两侧均不含任何有限数值，只有 NaN 或 Inf，首先是 {layer} 的 {slot}：该处没有进行比对。\n"
        "请先修正标杆：查找最先产生 NaN 或 Inf 的层及其输入。",
    ),
    "no-element": (
        "All {count} values that the layers took or made are empty, first {layer} {slot}: nothing of the run was compared.\n"
        "Run both nets on inputs that hold something.",
        "各层输入和输出的 {count} 个数据全部为空，首先是 {layer} 的 {slot}：运行结果没有进行比对。\n请用非空的输入运行两个网络。",
    ),
    "output-zero": (
        "The net's outputs are zero everywhere on both sides ({slot}): whatever is wrong before them may not show.\n"
        "Compare on weights and inputs that make other outputs.",
        "两侧网络的输出处处为零（{slot}）：此前的错误可能无法显现。\n请使用能得到非零输出的权重和输入进行比对。",
    ),
    "weights-moved": (
        "Both nets ran on weights that were changed after they were recorded ({count} layers, first {layer}): from step {step} "
        "on {records} values differ, and no layer is judged by them.\n"
        "Compare what changes the weights: the optimizer and its settings, the learning rate, the loss and its gradients.",
        "两个网络的权重在记录之后都被修改（{count} 层，首先是 {layer}）：从第 {step} 步起有 {records} 个数据不同，不据此判断任何层。\n"
        "请核对修改权重的环节：优化器及其设置、学习率、损失及其梯度。",
    ),
    "weights-moved-reference": (
        "The reference's weights were changed after they were recorded ({count} layers, first {layer}), the port's were not: "
        "from step {step} on {records} values cannot be set side by side.\n"
        "Run both nets with or both without what changes the weights (an optimizer), or compare the steps before.",
        "标杆的权重在记录之后被修改（{count} 层，首先是 {layer}），而待比对网络没有：从第 {step} 步起有 {records} 个数据无法比对。\n"
        "请让两个网络都执行或都不执行修改权重的环节（优化器），或只比对此前的步。",
    ),
    "weights-moved-port": (
        "The port's weights were changed after they were recorded ({count} layers, first {layer}), the reference's were not: "
        "from step {step} on {records} values cannot be set side by side.\n"
        "Run both nets with or both without what changes the weights (an optimizer), or compare the steps before.",
        "待比对网络的权重在记录之后被修改（{count} 层，首先是 {layer}），而标杆没有：从第 {step} 步起有 {records} 个数据无法比对。\n"
        "请让两个网络都执行或都不执行修改权重的环节（优化器），或只比对此前的步。",
    ),
    "steps-not-compared": (
        "{steps} steps stand in one dump only, from step {step} on, and ran on weights that were changed after they were "
        "recorded: they were not compared.\nWhat was compared are the steps before.",
        "有 {steps} 步（从第 {step} 步起）只存在于一个转储中，且其权重在记录之后被修改：这些步没有比对。\n已比对的是此前的步。",
    ),
    "unjudged-both": (
        "Made of weights that both sides have changed since they were recorded; no layer is judged by it.",
        "由两侧记录之后修改过的权重得到；不据此判断任何层。",
    ),
    "unjudged-reference": (
        "Made of weights that the reference alone has changed since they were recorded.",
        "由记录之后仅标杆修改过的权重得到。",
    ),
    "unjudged-port": (
        "Made of weights that the port alone has changed since they were recorded.",
        "由记录之后仅待比对网络修改过的权重得到。",
    ),
    "unjudged-mixup": (
        "The dumps were mixed up: the difference means nothing.",
        "转储弄混了：此差异没有意义。",
    ),
    "unmatched-moved": (
        "The other dump does not have this step, which ran on weights that were changed since they were recorded.",
        "另一个转储没有这一步；该步使用的权重在记录之后被修改过。",
    ),
    "forced-other-reference": (
        "The port's forced pass was made on another capture of the reference ({made}) than {reference}; it is not used.\n"
        "Capture the port again with --from {reference} for exact origins and causes.",
        "待比对网络的强制对齐运行基于另一次标杆采集（{made}），而不是 {reference}，因此未被采用。\n"
        "请用 --from {reference} 重新采集待比对网络，以获得准确的源头和原因。",
    ),
    "right-when-held": (
        "{layer} went wrong in the free run and is right when it runs again on the reference's values.\n"
        "Look for what changes from run to run: a state that the first run fills, random numbers, values kept in Python.",
        "{layer} 在自由运行中出错，但在标杆的输入上重新运行时正确。\n请查找每次运行会变化的内容：首次运行才填充的状态、随机数、保存在 Python 中的值。",
    ),
    "right-when-long": (
        "{layer} computed in {type} in the free run and went wrong; it is right on the reference's values in their own "
        "type.\nWhat it was given made it so: cast it back before {layer}, or keep the layer that hands it on in float32.",
        "{layer} 在自由运行中以 {type} 计算并出错；在标杆取值及其原类型上运行则正确。\n"
        "原因是传入的类型：请在 {layer} 之前转换回来，或让传出它的层保持 float32。",
    ),
    "right-when-eager": (
        "{layer} went wrong in the compiled graph and is right when it runs eagerly on the reference's values.\n"
        "Compiling freezes random numbers and values kept in Python, and may lose in-place writes to views; "
        "capture with --mode pynative and compare to be sure.",
        "{layer} 在编译后的图中出错，但以动态图在标杆的输入上运行时正确。\n"
        "编译会固定随机数和保存在 Python 中的值，对视图的原地写入也可能丢失；请用 --mode pynative 采集并比对以确认。",
    ),
    "wrong-unread": (
        "{count} value(s) differ in a part, first {slot} of {layer}, and nothing that the net hands on is made of that part.\n"
        "Mostly these are rows of padding (what a softmax makes where all is hidden means nothing), or indices of what has none.",
        "{count} 个数据有一部分不同，首个为 {layer} 的 {slot}；整网的输出并不由这一部分得到。\n"
        "这通常是填充位置所在的行（整行被屏蔽时 softmax 的结果没有意义），或没有对应项时的下标。",
    ),
    "growth-unexplained": (
        "Nothing was found to be wrong by itself, but {slot} of the net is off by {error}, and noise larger than rounding "
        "moves it by {noise} only.\nA mistake is in code that was not seen: look at the first layer over the tolerance, and "
        "please report this.",
        "未发现任何自身有误的位置，但整网的 {slot} 误差为 {error}，而大于舍入误差的噪声只使其变动 {noise}。\n"
        "错误在未能单独检查的代码中：请查看首个超差的层，并反馈此问题。",
    ),
    "wrong-when-eager": (
        "{layer} is right in the compiled graph and wrong when it runs eagerly on the reference's inputs.\n"
        "A graph has other kernels, and keeps a cast that a float16 cell undoes eagerly: with --mode pynative it is off here.",
        "{layer} 在编译后的图中正确，但以动态图在标杆的输入上运行时有误。\n"
        "图中的算子实现不同，且会保留 float16 的 Cell 在动态图下撤销的类型转换：若用 --mode pynative，此处会出现误差。",
    ),
    "setting-below-rounding": (
        "{layer} ({kind}, {count} in all): {settings} is not as in the reference. What comes of it is below the rounding of "
        "{type}, in which the reference computes here.\nPut it right all the same, or capture the reference in float32.",
        "{layer}（{kind}，共 {count} 层）：{settings} 与标杆不同。标杆在此处以 {type} 计算，其影响低于该类型的舍入误差。\n"
        "仍请改正，或以 float32 采集标杆后再比对。",
    ),
    "causes-failed": (
        "The search for causes stumbled at {failure}. The origin itself stands.\n"
        "Please report this together with the output of `aligner doctor`.",
        "查找原因时出错：{failure}。误差源头本身不受影响。\n请将此信息与 `aligner doctor` 的输出一并反馈。",
    ),
    "below-tolerance": (
        "{layer} ({kind}, {where}) has an error of {error} by itself: within tolerance, but far more than round-off explains.\n"
        "Compare its settings with the reference's.",
        "{layer}（{kind}，{where}）自身误差为 {error}：未超过容差，但远大于舍入误差。\n请与标杆核对其设置。",
    ),
    "short-by-cast": (
        "{layer} ({kind}, {where}) computes in {type}, the reference does not: its error is {error}, as {type} explains.\n"
        "If that is not meant, compute it in float32.",
        "{layer}（{kind}，{where}）以 {type} 计算，而标杆不是：误差为 {error}，由 {type} 即可解释。\n若非有意为之，请改用 float32 计算。",
    ),
    "dtype-class-differs": (
        "{count} pairs are integers on one side only, first {layer} {slot} ({reference}, {port}); compared by value.",
        "有 {count} 对数据仅一侧为整数，首先是 {layer} 的 {slot}（{reference}，{port}）；已按数值比对。",
    ),
}
