"""Why two nets were not run on the same data: causes in the pipelines that fed them."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry, Text

_UNDONE: Text = ("Undone, {left} is left", "还原后误差为 {left}")

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "inputs-exchanged",
        ("{slot} is what the reference was given as {instead}", "{slot} 得到的是标杆的 {instead}"),
        _UNDONE,
        ("Pass the arguments in the reference's order, or by name", "按标杆的次序传参，或使用关键字参数"),
    ),
    Entry(
        "totensor-scale-missing",
        (
            "The port's input is the reference's times {ratio}: bytes on one side, 0 to 1 on the other",
            "待比对的输入是标杆的 {ratio} 倍：一侧为 0 到 255，另一侧为 0 到 1",
        ),
        ("One ratio for all elements; divided by it, {left} is left", "所有元素比值相同；除以该比值后误差为 {left}"),
        (
            "ToTensor divides by 255: put vision.Rescale(1 / 255, 0) or vision.ToTensor() in the port's pipeline",
            "ToTensor 会除以 255：在待比对流程中加入 vision.Rescale(1 / 255, 0) 或 vision.ToTensor()",
        ),
    ),
    Entry(
        "normalized-otherwise",
        (
            "The port's input is normalised otherwise: the reference's times {factors} plus {addends}",
            "待比对输入的归一化不同：等于标杆乘以 {factors} 再加 {addends}",
        ),
        _UNDONE,
        (
            "See whether both sides divide by 255 and subtract the same mean; vision.Normalize after HWC2CHW needs"
            " is_hwc=False, and on 0..255 mean and std times 255",
            "检查两边是否都除以 255 并减去同样的均值；HWC2CHW 之后的 vision.Normalize 需要 is_hwc=False，"
            "作用于 0..255 时均值和方差须乘以 255",
        ),
    ),
    Entry(
        "hwc-chw-not-transposed",
        (
            "The picture's axes stand in another order: channels last on one side, first on the other",
            "图像的轴次序不同：一侧通道在后 (HWC)，另一侧在前 (CHW)",
        ),
        (
            "The same values, {shape} against {port_shape}: the reference's {factors} turned by {axes} leaves {left}",
            "数值相同，{shape} 对 {port_shape}：标杆按 {factors} 以 {axes} 转置后误差为 {left}",
        ),
        (
            "Transpose, do not reshape: vision.HWC2CHW() or x.transpose(2, 0, 1)",
            "使用转置而非 reshape：vision.HWC2CHW() 或 x.transpose(2, 0, 1)",
        ),
    ),
    Entry(
        "resize-wh-order",
        (
            "Height and width are exchanged: the reference's picture is {height} x {width}",
            "高与宽颠倒：标杆图像为 {height} x {width}",
        ),
        ("", ""),
        (
            "PIL's resize takes (width, height), vision.Resize takes (height, width)",
            "PIL 的 resize 为 (宽, 高)，vision.Resize 为 (高, 宽)",
        ),
    ),
    Entry(
        "centercrop-rounding",
        (
            "The picture is cut out at another place: {order}",
            "图像裁剪的位置不同：{order}",
        ),
        ("Moved back, {left} is left inside", "移回后内部误差为 {left}"),
        (
            "Centre crops round an odd rest up or down: crop by hand in both pipelines",
            "CenterCrop 对奇数余量的取整方式不同：两边都用 numpy 手工裁剪",
        ),
    ),
    Entry(
        "picture-made-otherwise",
        (
            "The two pictures show the same and are not equal: decoded or resized otherwise",
            "两幅图像内容相同但数值不等：解码或缩放方式不同",
        ),
        (
            "Correlation {correlation}, off by up to {largest} of the range",
            "相关系数 {correlation}，最大相差为取值范围的 {largest}",
        ),
        (
            "Compare interpolation, antialias and decoder: PIL resizes with antialias and bilinear, vision.Resize on"
            " arrays does not; save the array that the reference is given and feed it to both",
            "检查插值方式、抗锯齿与解码器：PIL 缩放带抗锯齿，数组上的 vision.Resize 没有；"
            "可保存标杆的输入数组供两边使用",
        ),
    ),
    Entry(
        "dataset-shuffle-default",
        ("The samples of the batch stand in another order: {order}", "批内样本次序不同：{order}"),
        ("Put back in order, {left} is left", "恢复次序后误差为 {left}"),
        (
            "MindSpore's data sets shuffle unless they are told shuffle=False",
            "MindSpore 数据集默认打乱：传入 shuffle=False",
        ),
    ),
    Entry(
        "batch-drop-remainder",
        ("The batch has another size: {part}", "批大小不同：{part}"),
        ("{port_shape} against {shape}; that part leaves {left}", "{port_shape} 对 {shape}；该部分误差为 {left}"),
        (
            "Use one batch size on both sides, and the same drop_remainder (drop_last)",
            "两边使用相同的批大小与 drop_remainder（drop_last）",
        ),
    ),
    Entry(
        "tokens-shifted",
        ("The tokens stand {order} from where they belong", "词元位置有偏移：{order}"),
        ("Moved back, {left} is left inside", "移回后内部误差为 {left}"),
        (
            "Look for a start token that one side adds, or labels shifted in the pipeline and again in the net",
            "检查是否只有一侧加了起始符，或标签在数据流程与网络中被移动了两次",
        ),
    ),
    Entry(
        "special-tokens",
        (
            "One side has tokens that the other lacks: the same text is {part}",
            "一侧多出若干词元：相同的文本为 {part}",
        ),
        ("{port_shape} against {shape}; that part leaves {left}", "{port_shape} 对 {shape}；该部分误差为 {left}"),
        (
            "Look for start and end tokens (add_special_tokens) and for the padding's length",
            "检查起始符、结束符（add_special_tokens）以及补齐长度",
        ),
    ),
    Entry(
        "tokens-padding-side",
        (
            "Rows are filled up with {filler} on the {found}, the reference's on the {wanted}",
            "各行用 {filler} 补齐的一侧不同：待比对为 '{found}'，标杆为 '{wanted}'",
        ),
        ("Without what fills them up the rows are equal", "去掉补齐部分后各行相同"),
        (
            "Set the tokenizer's padding_side to '{wanted}'",
            "将分词器的 padding_side 设为 '{wanted}'",
        ),
    ),
    Entry(
        "inputs-unrelated",
        (
            "The two inputs have nothing in common: other data, or drawn at random on each side",
            "两个输入毫无关联：数据不同，或两侧各自随机生成",
        ),
        (
            "Correlation {correlation}; of {total} elements looked at {differing} differ",
            "相关系数 {correlation}；所查看的 {total} 个元素中有 {differing} 个不同",
        ),
        (
            "Make the data once and feed it to both: aligner capture ... --from takes the reference's inputs",
            "数据只生成一次并供两边使用：aligner capture ... --from 会使用标杆的输入",
        ),
    ),
)
