"""Messages of checkpoints: reading, comparing and converting them."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {
    # reading
    "checkpoint-unreadable": (
        "{path} cannot be read: {reason}.\nCheck the path and its permissions.",
        "无法读取 {path}：{reason}。\n请检查路径及其权限。",
    ),
    "checkpoint-damaged": (
        "{path} cannot be read as a checkpoint: {reason}.\n"
        "If it was copied or downloaded, do so again; else save it anew as a table of tensors "
        "(`torch.save(net.state_dict(), path)`, `mindspore.save_checkpoint(net, path)`).",
        "无法将 {path} 作为权重文件读取：{reason}。\n"
        "若文件由复制或下载得到，请重新获取；否则请重新保存为张量表"
        "（`torch.save(net.state_dict(), path)`、`mindspore.save_checkpoint(net, path)`）。",
    ),
    "checkpoint-empty": (
        "{path} is empty.\nName a .pth, .ckpt or .safetensors file, a folder of shards, or a dump.",
        "{path} 是空文件。\n请给出 `.pth`、`.ckpt`、`.safetensors` 文件，分片目录或转储。",
    ),
    "checkpoint-unknown": (
        "{path} is no checkpoint that is known here.\n"
        "Name a .pth, .ckpt or .safetensors file, a folder of shards, or a dump.",
        "{path} 不是已知格式的权重文件。\n请给出 `.pth`、`.ckpt`、`.safetensors` 文件，分片目录或转储。",
    ),
    "checkpoint-other-kind": (
        "{path} is no checkpoint but a file of the kind {kind}.\n"
        "Name a .pth, .ckpt or .safetensors file, a folder of shards, or a dump.",
        "{path} 不是权重文件，而是 {kind} 类型的文件。\n请给出 `.pth`、`.ckpt`、`.safetensors` 文件，分片目录或转储。",
    ),
    "checkpoint-encrypted": (
        "{path} is encrypted, and is not read without its key.\n"
        "Load it with `mindspore.load_checkpoint(path, dec_key=...)` and save it without a key.",
        "{path} 已加密，没有密钥无法读取。\n请用 `mindspore.load_checkpoint(path, dec_key=...)` 加载后不加密地另存。",
    ),
    "checkpoint-dump-bare": (
        "{path} holds no parameters: it was captured with `--no-weights`, or without a net that has any.\n"
        "Capture it again without that option.",
        "{path} 中没有参数：采集时使用了 `--no-weights`，或网络本身没有参数。\n请去掉该选项重新采集。",
    ),
    "checkpoint-no-shards": (
        "{path} has no shards in it: no file ends with one of {endings}.\nName the folder that holds them, or one file.",
        "{path} 中没有权重分片：没有以 `{endings}` 之一结尾的文件。\n请给出存放分片的目录，或单个文件。",
    ),
    "checkpoint-distributed": (
        "{path} holds the parts of a distributed training, each with a slice of the parameters.\n"
        "Put them together first: `mindspore.unified_safetensors` or `mindspore.merge_sliced_parameter`.",
        "{path} 存放的是分布式训练的各部分，每部分只有参数的切片。\n"
        "请先合并：`mindspore.unified_safetensors` 或 `mindspore.merge_sliced_parameter`。",
    ),
    "checkpoint-shard-missing": (
        "{path} lacks {name}, which {index} names.\nCopy or download the whole folder.",
        "{path} 缺少 {index} 中列出的 {name}。\n请复制或下载整个目录。",
    ),
    "checkpoint-shards-twice": (
        "In {path} two files hold a tensor called {name}.\nName the one file that is meant, or put one away.",
        "{path} 中有两个文件都含有名为 {name} 的张量。\n请直接给出所需的文件，或移走其中一个。",
    ),
    "checkpoint-shards-lack": (
        "The index of {path} names tensors that no shard holds ({count}), the first: {name}.\n"
        "Copy or download the whole folder.",
        "{path} 的索引中有 {count} 个张量不在任何分片中，首个为 {name}。\n请复制或下载整个目录。",
    ),
    "checkpoint-none": (
        "{path} holds no parameters.\nName another file.",
        "{path} 中没有任何参数。\n请给出其他文件。",
    ),
    # why a file cannot be read
    "why-pickle": (
        "its pickle has an instruction that plain data do not need ({0}, byte {1})",
        "其 `pickle` 含有普通数据不需要的指令（{0}，第 {1} 字节）",
    ),
    "why-pickle-names": (
        "it names {0}, which is nothing that a table of tensors needs, and nothing of a file is run here",
        "其中引用了 {0}，而张量表并不需要它，并且此处不会运行文件中的任何内容",
    ),
    "why-pickle-arguments": (
        "what it gives {0} is nothing that torch writes",
        "其中传给 {0} 的内容不是 torch 会写出的形式",
    ),
    "why-plain-pickle": (
        "it is a pickle that `torch.save` has not written",
        "它是 `pickle` 文件，但不是 `torch.save` 写出的",
    ),
    "why-no-pickle": ("the archive has no single data.pkl", "压缩包中没有唯一的 data.pkl"),
    "why-torchscript": (
        "it is a TorchScript program; save `state_dict()` of what `torch.jit.load` gives",
        "它是 TorchScript 程序；请保存 `torch.jit.load` 所得对象的 `state_dict()`",
    ),
    "why-big-endian": (
        "its bytes are in the order of another machine (big-endian)",
        "其字节序属于另一类机器（大端）",
    ),
    "why-bad-zip": ("the archive is damaged", "压缩包已损坏"),
    "why-zip-member": (
        "{0} in the archive is compressed, encrypted or too large ({1} bytes)",
        "压缩包中的 {0} 被压缩、加密或过大（{1} 字节）",
    ),
    "why-no-table": (
        "it holds {0} where a table of names and tensors is wanted",
        "其内容是 {0}，而此处需要名称与张量的表",
    ),
    "why-no-tensors": ("there are no tensors in it", "其中没有张量"),
    "why-tensor-outside": ("a tensor goes beyond its storage {0}", "某个张量超出了其存储区 {0}"),
    "why-repeated": (
        "a tensor of shape {0} repeats the few numbers that are stored",
        "形状为 {0} 的张量只是重复少量已存的数值",
    ),
    "why-names-twice": ("two tensors have one name", "有两个张量同名"),
    "why-tensor-place": (
        "{0} does not begin where the tensor before it ends",
        "{0} 的起点不是前一个张量的终点",
    ),
    "why-more-behind": ("{0} bytes stand behind the last tensor", "最后一个张量之后还有 {0} 字节"),
    "why-no-protobuf": (
        "it is no checkpoint of MindSpore's from byte {0} on",
        "自第 {0} 字节起不符合 MindSpore 权重文件的格式",
    ),
    "why-parts-differ": (
        "the parts of {0} differ in shape or type",
        "{0} 的各部分形状或类型不同",
    ),
    "why-checksum": ("its checksum does not fit", "其校验和不符"),
    # the answer
    "weights-equal": ("EQUAL", "一致"),
    "weights-different": ("DIFFERENT", "不一致"),
    "weights-unmatched": ("UNMATCHED", "未对应"),
    "weights-incomparable": ("INCOMPARABLE", "无法比对"),
    "weights-answer-equal": (
        "all {count} tensors have the same values on both sides{more}",
        "两侧全部 {count} 个张量的值相同{more}",
    ),
    "weights-answer-rounded": (
        ", {count} of them but for rounding to {words}",
        "，其中 {count} 个仅有舍入到 {words} 的差别",
    ),
    "weights-answer-close": (", {count} of them within {tolerance}", "，其中 {count} 个在容差 {tolerance} 之内"),
    "weights-answer-different": (
        "{count} of {total} tensors differ, the first: {name}",
        "{total} 个张量中有 {count} 个不同，首个为：{name}",
    ),
    "weights-answer-unmatched": (
        "all {total} tensors that stand on both sides agree, but {count} have no counterpart, the first: {name}",
        "两侧都有的 {total} 个张量一致，但有 {count} 个没有对应项，首个为：{name}",
    ),
    "weights-answer-incomparable": (
        "no tensor of {reference} stands for one of {port}: neither names nor shapes nor values agree",
        "{reference} 中没有任何张量与 {port} 对应：名称、形状和数值都不相符",
    ),
    "weights-side": (
        "{path}{inside}: {form}, {count} tensors, {size}",
        "{path}{inside}：{form}，{count} 个张量，{size}",
    ),
    "weights-inside": (" [{key}]", " [{key}]"),
    "weights-form-dump": ("dump", "转储"),
    "weights-label-reference": ("reference", "标杆"),
    "weights-label-port": ("port", "待比对"),
    "weights-label-pairs": ("paired", "对应"),
    "weights-label-left": ("left out", "未计入"),
    "weights-label-alone-0": ("only in the reference", "仅标杆有"),
    "weights-label-alone-1": ("only in the port", "仅待比对有"),
    "pairs-by-same": ("{count} by one name", "同名 {count} 对"),
    "pairs-by-name": ("{count} by the rules of names", "按命名规则 {count} 对"),
    "pairs-by-prefix": ("{count} but for a prefix ({one} / {other})", "仅前缀不同 {count} 对（{one} / {other}）"),
    "pairs-by-map": ("{count} by the map", "按映射 {count} 对"),
    "pairs-by-order": ("{count} by shape and order", "按形状与顺序 {count} 对"),
    "pairs-by-values": ("{count} by equal values", "按相同数值 {count} 对"),
    "weights-title-different": ("Different", "不同的张量"),
    "weights-figures": (
        "{shape}  max|d| {max_abs}  relative {rel}",
        "{shape}  max|d| {max_abs}  相对误差 {rel}",
    ),
    "weights-shapes": ("{shape} against {other}", "{shape} 对 {other}"),
    "weights-nonfinite": ("; NaN or Inf on one side only at {count} places", "；有 {count} 处仅一侧为 NaN 或 Inf"),
    "weights-may-lack": ("needs none", "无需对应"),
    "weights-more": ("... {count} more (`--all` lists them)", "……另有 {count} 项（`--all` 列出全部）"),
    "weights-counters": (
        "num_batches_tracked ({count}): MindSpore has no such counter",
        "num_batches_tracked（{count} 个）：MindSpore 没有该计数器",
    ),
    "left-beside": ("{names}: beside the parameters", "{names}：与参数并列存放的其他内容"),
    "left-no-tensor": ("{names}: no tensor", "{names}：不是张量"),
    "left-unreadable": (
        "{names}: of a type or form that is not compared (quantized, sparse, other floats)",
        "{names}：其类型或形式不参与比对（量化、稀疏或其他浮点）",
    ),
    "left-optimizer": ("{names}: kept by an optimizer", "{names}：由优化器保存"),
    "left-training": ("{names}: numbers of a training", "{names}：训练过程中的数值"),
    "weights-progress": (
        "{done} of {total} read ({speed}/s)",
        "已读取 {done}/{total}（{speed}/s）",
    ),
    "weights-option": (
        "The option {option} is for two dumps, and {path} is a checkpoint.\nLeave it out; see `aligner compare --help`.",
        "选项 {option} 用于两个转储，而 {path} 是权重文件。\n请去掉该选项；参见 `aligner compare --help`。",
    ),
    # converting
    "convert-ending": (
        "{path} does not tell what is to be written: its ending is none of {known}.\nGive the output such an ending.",
        "无法由 {path} 得知要写出的格式：其后缀不是 `{known}` 之一。\n请为输出使用其中一个后缀。",
    ),
    "convert-exists": (
        "{path} is there already.\nGive another name, or `--force` to write over it.",
        "{path} 已存在。\n请换一个名称，或用 `--force` 覆盖。",
    ),
    "convert-same": (
        "{path} is what is to be converted, or one of its shards.\nGive another name for the output.",
        "{path} 就是要转换的文件或其分片。\n请为输出换一个名称。",
    ),
    "convert-no-folder": (
        "{path} cannot be written: there is no folder {folder}.\nMake it first, or give another path.",
        "无法写入 {path}：目录 {folder} 不存在。\n请先创建该目录，或给出其他路径。",
    ),
    "convert-unwritten": (
        "{path} cannot be written: {reason}.\nNothing is left there; give another path, or make room.",
        "无法写入 {path}：{reason}。\n没有留下任何文件；请换一个路径，或腾出空间。",
    ),
    "convert-nothing": (
        "Nothing of {source} can be written as {path}: no tensor maps.\n"
        "Check that {source} belongs to this net, or say with `--map FILE` which layer is which.",
        "{source} 中没有任何内容可以写入 {path}：没有张量能够对应。\n"
        "请检查 {source} 是否属于该网络，或用 `--map FILE` 指明层的对应关系。",
    ),
    "convert-net-form": (
        "'{text}' names no net.\nGive --net FILE.py:NAME, NAME being a function that builds it, as for `aligner capture`.",
        "'{text}' 没有指明网络。\n请用 --net FILE.py:NAME 给出构造网络的函数，与 `aligner capture` 相同。",
    ),
    "convert-map-net": (
        "--map says which layer of a net is which, and no net is given.\nGive it with --net FILE.py:NAME.",
        "--map 用于指明网络中层的对应关系，但没有给出网络。\n请用 --net FILE.py:NAME 给出。",
    ),
    "convert-names": (
        "--names {names} contradicts --net: that net is {framework}'s.\nLeave --names out.",
        "--names {names} 与 --net 矛盾：该网络属于 {framework}。\n请去掉 --names。",
    ),
    "convert-done": (
        "{path}: {count} tensors, {size}, in the names of {words}",
        "{path}：{count} 个张量，{size}，采用 {words} 的命名",
    ),
    "convert-progress": ("{done} of {total} written ({speed}/s)", "已写出 {done}/{total}（{speed}/s）"),
    "convert-whole": ("CONVERTED", "已转换"),
    "convert-partly": ("INCOMPLETE", "不完整"),
    "convert-unused": ("The net has no place for", "网络中没有位置的张量"),
    "convert-lacking": ("Nothing stands for these parameters of the net", "网络中没有来源的参数"),
    "convert-misshapen": ("Of another shape than the net wants", "形状与网络要求不同"),
    "convert-wants": ("{name}  {shape}; the net's {other} is {wanted}", "{name}  {shape}；网络的 {other} 为 {wanted}"),
    "convert-guesses": (
        "Guessed by the layer's name (`--net FILE:NAME` makes it sure)",
        "按层名推测（用 `--net FILE:NAME` 可以确定）",
    ),
    "convert-order": (
        "Matched by shape and order (look at them, or give `--map FILE`)",
        "按形状与顺序对应（请核对，或给出 `--map FILE`）",
    ),
    "convert-label-names": ("names", "命名"),
    "convert-by-kept": ("{count} kept", "保留 {count} 个"),
    "convert-by-rule": ("{count} by the rules of names", "按命名规则 {count} 个"),
    "convert-by-guess": ("{count} guessed", "推测 {count} 个"),
    "convert-dropped": ("{names}: no counterpart there", "{names}：对方没有对应项"),
    "convert-type": ("{names}: of a type that this file cannot hold", "{names}：该类型无法存入此文件"),
}
