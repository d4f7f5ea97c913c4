"""Messages about running a port on the reference's data."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {
    "weights-none": (
        "{reference} holds no weights, so the port cannot be given the same ones ({left_port}).\n"
        "Capture the reference again without --no-weights, or go on with --allow-missing.",
        "{reference} 中没有权重，无法让待比对网络使用相同的权重（{left_port}）。\n请不加 --no-weights 重新采集标杆，或用 --allow-missing 继续。",
    ),
    "weights-left-reference": (
        "The port has no parameter for these of {reference}: {left_reference}.\n"
        "Give the layer one (its bias?), say where it is with --rename REF=PORT, or go on with --allow-missing.",
        "待比对网络缺少 {reference} 中的以下参数：{left_reference}。\n"
        "请为该层补上参数（偏置？），用 --rename REF=PORT 指明对应关系，或用 --allow-missing 继续。",
    ),
    "weights-left-port": (
        "{reference} has no parameter for these of the port: {left_port}.\n"
        "Share or drop what the reference shares or lacks, say what they are with --rename REF=PORT, "
        "or go on with --allow-missing.",
        "{reference} 中没有与待比对网络以下参数对应的参数：{left_port}。\n"
        "标杆共享或没有的参数请同样共享或去掉，用 --rename REF=PORT 指明对应关系，或用 --allow-missing 继续。",
    ),
    "weights-left-over": (
        "Parameters have no counterpart. In {reference} only: {left_reference}. In the port only: {left_port}.\n"
        "Say what belongs together with --rename REF=PORT, correct the port (sizes, a bias?), or go on with --allow-missing.",
        "部分参数没有对应项。仅在 {reference} 中：{left_reference}。仅在待比对网络中：{left_port}。\n"
        "请用 --rename REF=PORT 指明对应关系，修正移植代码（尺寸、偏置？），或用 --allow-missing 继续。",
    ),
    "weights-loaded": (
        "weights: {count} parameters from {reference} ({named} by name, {structure} by structure)",
        "权重：来自 {reference} 的 {count} 个参数（按名称 {named} 个，按结构 {structure} 个）",
    ),
    "weights-by-values": (
        "  {count} of them by the values that their layers are given: names and order do not tell",
        "  另有 {count} 个按各层收到的数值对应：名称与顺序都不足以判断",
    ),
    "weights-by-structure": (
        "  {reference} -> {port}  (confidence {confidence})",
        "  {reference} -> {port}（置信度 {confidence}）",
    ),
    "weights-in-rows": (
        "  {reference} -> {port}, as its rows {rows}{times}",
        "  {reference} -> {port}，作为其第 {rows} 行{times}",
    ),
    "weights-of-rows": (
        "  {reference}, its rows {rows} -> {port}{times}",
        "  {reference} 的第 {rows} 行 -> {port}{times}",
    ),
    "weights-turned": (
        "  {reference} -> {port}, with its axes turned{times}",
        "  {reference} -> {port}，转置{times}",
    ),
    "weights-reshaped": (
        "  {reference} -> {port}, in another shape{times}",
        "  {reference} -> {port}，变形{times}",
    ),
    "weights-folded": (
        "  {reference}, with {norm} folded in -> {port}{times}",
        "  {reference}（已将 {norm} 折叠进去）-> {port}{times}",
    ),
    "weights-unfolded": (
        "  {reference} -> {port}, and {norm} of the port does nothing but add the bias{times}",
        "  {reference} -> {port}，待比对网络的 {norm} 仅用于加上偏置{times}",
    ),
    "weights-normed": (
        "  {reference}, as its direction and length (weight norm) make it -> {port}{times}",
        "  {reference}（由其方向与长度合成，即权重归一化）-> {port}{times}",
    ),
    "weights-unnormed": (
        "  {reference} -> {port}, as a direction and a length (weight norm){times}",
        "  {reference} -> {port}，拆成方向与长度（即权重归一化）{times}",
    ),
    "weights-raised": (
        "  {reference} {rows} -> {port}{times}: the port's own weights held it so before, and so its norm comes out right",
        "  {reference} {rows} -> {port}{times}：待比对网络原有的权重即为此形式，且归一化结果因此一致",
    ),
    "weights-folded-training": (
        "The {side} runs in train mode, where {norm} goes by its batch: it cannot stand for a part of {layer}.\n"
        "Capture the reference in eval mode, or give both sides the norm.",
        "{side} 处于训练模式，{norm} 使用当前批次的统计量，无法与 {layer} 合并。\n"
        "请在推理（eval）模式下采集标杆，或让两侧都保留该归一化层。",
    ),
    "weights-times": (
        " ({count} times)",
        "（共 {count} 处）",
    ),
    "weights-told": (
        "not loaded, and not needed or allowed: reference {left_reference}; port {left_port}",
        "未加载（不需要或已允许）：标杆 {left_reference}；待比对 {left_port}",
    ),
    "expectation-failed": (
        "What rounding explains could not be measured in {dtype} ({error}).\n"
        "Errors are judged by the spacing of floats alone, which is right for all but sensitive layers.",
        "无法在 {dtype} 下测量舍入误差（{error}）。\n将只按浮点数间隔判断误差；除特别敏感的层以外，这是合适的。",
    ),
    "forced-failed": (
        "The forced pass did not get through ({error}); origins are worked out from the free run alone.\n"
        "They may be less exact: a second mistake behind the first one can stay hidden.",
        "强制对齐运行未能完成（{error}）；只能根据自由运行推断误差源头。\n结果可能不够精确：第一个错误之后的第二个错误可能被掩盖。",
    ),
    "edits-failed": (
        "The search for edits of the port's code did not get through ({error}).\n"
        "Where its code is wrong, the line may be shown without a change.",
        "对待比对代码修改的查找未能完成（{error}）。\n代码有误之处可能只给出代码行，而没有修改。",
    ),
    "edits-spent": (
        "The search for edits of the port's code was ended after {seconds} s; some wrong code was not looked into.\n"
        "Mend what is shown, and capture the port again, or give it longer: --search SECONDS.",
        "对待比对代码修改的查找在 {seconds} 秒后结束，部分有误的代码尚未查找。\n请先改正已给出的部分，再重新采集待比对网络；或延长时间：--search 秒数。",
    ),
    "steps-left-out": (
        "{count} steps of {reference} are left out, from step {step} on: it ran them on weights that were changed after they "
        "were recorded (training). Steps run: {run}",
        "跳过 {reference} 的 {count} 步（从第 {step} 步起）：这些步使用的权重在记录之后被修改（训练）。运行步数：{run}",
    ),
    "rename-unknown": (
        "--rename: the {side} has no layer or parameter '{name}'; close ones: {close}.\n"
        "Write REF=PORT with dotted paths, or prefixes of them.",
        "--rename：{side} 中没有层或参数 '{name}'；相近的有：{close}。\n请写成 REF=PORT，使用点分路径或其前缀。",
    ),
    "nets-several": (
        "{reference} holds several nets that were captured together: {names}.\n"
        "Capture the port's together as well: a script without --model, or by name: "
        "aligner.replay(reference, {{'...': net, '...': other}}).",
        "{reference} 中是一起采集的多个网络：{names}。\n"
        "待比对的网络也请一起采集：脚本不要使用 `--model`，或按名称给出："
        "`aligner.replay(reference, {{'...': net, '...': other}})`。",
    ),
    "nets-one": (
        "{reference} holds one net, and several were given.\nGive the one that stands for it.",
        "{reference} 中只有一个网络，而给出了多个。\n请只给出与之对应的那一个。",
    ),
    "rename-form": (
        "--rename '{text}': wanted REF=PORT.\nFor example: --rename encoder.layers=blocks",
        "--rename '{text}'：格式应为 REF=PORT。\n例如：--rename encoder.layers=blocks",
    ),
    "step-missing": (
        "{reference} has no inputs of the top-level net for step {step}; it has steps: {have}.\n"
        "Ask for one of these with --steps, or capture the reference for more steps.",
        "{reference} 中没有顶层网络第 {step} 步的输入；现有步：{have}。\n请用 --steps 选择，或为标杆采集更多步。",
    ),
    "input-missing": (
        "{reference} holds no values for the net's {slot}.\nCapture the reference again and look for its cautions.",
        "{reference} 中没有网络 {slot} 的值。\n请重新采集标杆并留意其中的提示。",
    ),
    "input-opaque": (
        "The reference was called with an object of class {kind}, which a dump cannot hold.\n"
        "Give the port its inputs yourself: let its factory return (model, inputs).",
        "标杆以 {kind} 类的对象作为参数被调用，转储无法保存它。\n请自行提供待比对网络的输入：让工厂函数返回 (模型, 输入)。",
    ),
}
