"""Why something could not be done: the reasons that other messages tell as {reason}, by ids with parts in order.

They travel as text, "why-sparse|COOTensor" (aligner.errors.Reason), also into dumps.
"""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {
    # tensors
    "why-nested": (
        "no values can be read from this {0}: a nested tensor holds rows of different lengths and has no one shape",
        "无法读取该张量（{0}）的值：嵌套张量各行长度不同，没有统一的形状",
    ),
    "why-sparse": (
        "no values can be read from this {0}: a sparse tensor stores some of its values only; to_dense() in the net makes"
        " it readable",
        "无法读取该张量（{0}）的值：稀疏张量只存储部分值；在网络中调用 to_dense() 后即可读取",
    ),
    "why-sparse-cell": (
        "{0} is sparse: its values have no place in a dense array",
        "{0} 是稀疏张量：其值在稠密数组中没有位置",
    ),
    "why-meta": (
        "it is on the meta device, where tensors have a shape and no values",
        "它在 meta 设备上，只有形状而没有值",
    ),
    "why-quantized": (
        "no values can be read from this {0}: a quantized tensor stores codes, not values; dequantize() in the net makes"
        " it readable",
        "无法读取该张量（{0}）的值：量化张量存储的是编码而不是值；在网络中调用 dequantize() 后即可读取",
    ),
    "why-freed": (
        "no values can be read from this {0}: its memory was given back",
        "无法读取该张量（{0}）的值：其内存已被释放",
    ),
    "why-unshown": ("{0} cannot show the values of this {1}: {2}", "{0} 无法给出该张量（{1}）的值：{2}"),
    "why-view": (
        "MindSpore cannot read this view of {0} here: copy it first",
        "MindSpore 无法在此读取 {0} 的视图：请先复制",
    ),
    "why-no-counterpart": (
        "numpy has no counterpart of {0}, and neither has the dump",
        "numpy 和转储中都没有与 {0} 对应的类型",
    ),
    "why-not-made-yet": (
        "its values are made when it is first used; call init_parameters_data() on the net before",
        "它的值在首次使用时才生成；请先对网络调用 init_parameters_data()",
    ),
    # how a layer is built
    "why-computed-weights": (
        "weights of this {0} are computed from others, as in weight_norm",
        "该 {0} 的权重由其他参数计算得到（如 weight_norm）",
    ),
    "why-own-class": (
        "{0} is no layer of {1}, and only its author knows how it is made",
        "{0} 不是 {1} 的层，只有其作者知道如何构造",
    ),
    "why-not-made": ("no {0} can be made: {1}", "无法构造 {0}：{1}"),
    "why-uneven": (
        "torch has no padding {0} here: its layers put as much before as after",
        "torch 在此没有填充 {0}：其层在前后填充相同的数量",
    ),
    "why-no-padder": (
        "there is no layer for {0} axes that pads {1} as {2}",
        "没有能以 {2} 方式在 {0} 个轴上填充 {1} 的层",
    ),
    "why-empty-stack": (
        "a {0} without layers does not tell how it was made",
        "不含任何层的 {0} 无法说明其构造方式",
    ),
    "why-own-encoder": (
        "a Transformer with an encoder or layers of the user's own cannot be spelled",
        "编码器或层由用户自定义的 Transformer 无法写成代码",
    ),
    "why-own-names": ("the layers of this {0} have names of their own: {1}", "该 {0} 中的层使用了自定义名称：{1}"),
    "why-unknown-constructor": (
        "{0} is not a layer of MindSpore's whose constructor is known here",
        "{0} 不是此处已知构造方式的 MindSpore 层",
    ),
    "why-not-made-so": ("{0} cannot be made with these settings: {1}", "无法用这些设置构造 {0}：{1}"),
    "why-settings-differ": (
        "{0} cannot be made with these settings: they do not come out so",
        "无法用这些设置构造 {0}：构造出的设置不同",
    ),
    "why-no-class": (
        "{0} cannot be made with these settings: this MindSpore has no {1}",
        "无法用这些设置构造 {0}：此 MindSpore 没有 {1}",
    ),
    "why-unspelled": (
        "{0} is nothing of MindSpore's that can be spelled",
        "{0} 不是可以写成代码的 MindSpore 对象",
    ),
    "why-settings-only": ("the dump has its settings only, {0}", "转储中只有其设置：{0}"),
    "why-weights-needed": (
        "it needs all weights in the dump, in one float type",
        "需要转储中包含全部权重，且为同一浮点类型",
    ),
    # compiled graphs
    "why-calls-arrived": ("{0} of 2 calls arrived", "2 次调用中只收到 {0} 次"),
    "why-values-arrived": ("other values arrived: {0}", "收到的值不同：{0}"),
    "why-put-together": (
        "Python puts a dict together that it gets or returns, which MindSpore knows only when the graph runs",
        "其输入或返回的字典由 Python 组成，MindSpore 在图运行时才知道",
    ),
    "why-untyped": (
        "it gets or returns a value whose type MindSpore knows only when the graph runs",
        "其输入或返回的值的类型要到图运行时才能确定",
    ),
    "why-others-neither": ("too many others cannot be, either", "无法观察的层过多"),
    # devices
    "why-unknown-name": ("unknown", "未知的名称"),
    # files
    "why-single-array": ("it is a single .npy array", "它是单个 .npy 数组"),
    "why-no-arrays": ("no arrays in it", "其中没有数组"),
    "why-not-text": ("not UTF-8 text", "不是 UTF-8 文本"),
    "why-names-strings": ("names must be strings", "名称必须是字符串"),
    "why-cut-short": ("it ends before its data do", "文件在数据结束之前中断"),
    "why-no-file": ("it is no plain file", "它不是普通文件"),
    "why-no-npy": ("it is no .npy file", "它不是 .npy 文件"),
    "why-long-header": ("its header has {0} bytes", "其文件头长达 {0} 字节"),
    "why-other-size": (
        "it has {0} bytes of data where {1} {2} has {3}",
        "其数据为 {0} 字节，而 {1} {2} 应为 {3} 字节",
    ),
    "why-other-header": ("its header is of another form", "其文件头格式不符"),
    "why-columns-first": (
        "its columns come before its rows, which MindSpore does not write",
        "其数据按列存放，而 MindSpore 不会这样写",
    ),
    "why-no-numbers": ("it holds {0}, not numbers", "其内容是 {0}，不是数值"),
    "why-shape": ("its shape is {0}", "其形状为 {0}"),
}
