"""What is damaged in a dump, or cannot be in one: reasons (aligner.errors.Reason), by ids with parts in order."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {
    # JSON
    "why-no-json": ("it is no JSON at line {0}, column {1}", "第 {0} 行第 {1} 列不是有效的 JSON"),
    "why-deep": ("nested too deep", "嵌套过深"),
    "why-digits": ("a number has too many digits", "某个数字的位数过多"),
    "why-number-bounds": ("a number is out of bounds", "某个数字超出范围"),
    "why-other-form": ("it is of another form ({0})", "其形式不符（{0}）"),
    # names
    "why-no-name": ("{0} is no name", "{0} 不能作为名称"),
    "why-no-phase": ("{0} is no phase of a capture", "{0} 不是采集的阶段"),
    # the first bytes
    "why-first-checksum": ("the checksum of the first 512 bytes does not fit", "前 512 字节的校验和不符"),
    "why-first-formats": (
        "the first 512 bytes name format {0} and format {1}",
        "前 512 字节给出了两个格式版本：{0} 和 {1}",
    ),
    "why-first-form": ("the first 512 bytes are of another form ({0})", "前 512 字节的形式不符（{0}）"),
    "why-first-place": ("the first 512 bytes name a place that is none", "前 512 字节给出的某个位置无效"),
    "why-first-number": ("the first 512 bytes hold a number that is none", "前 512 字节中的某个数字无效"),
    # sections
    "why-section-missing": ("the section {0} is missing", "缺少 `{0}` 段"),
    "why-section-outside": ("the section {0} lies outside the file", "`{0}` 段位于文件之外"),
    "why-section-checksum": ("the checksum of the section {0} does not fit", "`{0}` 段的校验和不符"),
    "why-no-list": ("the {0} are no list", "`{0}` 不是列表"),
    # the header
    "why-bad-header": ("the header is damaged", "文件头已损坏"),
    "why-header-plain": ("{0} in the header is neither text nor a number", "文件头中的 `{0}` 既不是文本也不是数字"),
    "why-header-field": ("{0} in the header is damaged", "文件头中的 `{0}` 已损坏"),
    # layers, notes, findings
    "why-bad-layer": ("a layer is damaged", "某一层的信息已损坏"),
    "why-bad-setting": ("a setting is damaged", "某个层设置已损坏"),
    "why-inside-layers": ("a layer stands inside too many others", "某一层的嵌套层数过多"),
    "why-bad-note": ("a note is damaged", "某条说明已损坏"),
    "why-bad-finding": ("a finding is damaged", "某条发现已损坏"),
    # calls
    "why-bad-calls": ("the calls are damaged ({0})", "调用记录已损坏（{0}）"),
    "why-call-columns": ("the columns of the calls differ in length", "调用记录各列长度不同"),
    "why-call-number": ("a call's number is none", "某次调用的编号无效"),
    "why-call-ends": ("a call ends before it begins", "某次调用在开始之前就已结束"),
    "why-inside-calls": ("a call stands inside too many others", "某次调用的嵌套层数过多"),
    "why-bad-structure": (
        "how a call's values were nested is damaged",
        "调用的参数或结果的嵌套结构已损坏",
    ),
    # the index
    "why-bad-index": ("the index is damaged ({0})", "索引已损坏（{0}）"),
    "why-index-tables": ("its tables are none", "其索引的表格无效"),
    "why-index-lengths": ("the columns differ in length", "索引各列长度不同"),
    "why-index-column": ("a column is none", "索引的某一列无效"),
    "why-index-numbers": ("a column holds something else than numbers", "索引的某一列不全是数字"),
    "why-no-dtype": ("a dtype is unknown", "某个数据类型未知"),
    "why-no-shape": ("a shape is none", "某个形状无效"),
    "why-large-shape": ("a shape is too large", "某个形状过大"),
    "why-not-there": ("a record names a {0} that is not there", "某条记录的 `{0}` 指向不存在的内容"),
    "why-record-number": ("a record's number is none", "某条记录的编号无效"),
    "why-record-order": ("the records are not in order", "记录未按顺序排列"),
    "why-record-outside": ("a record lies outside the data", "某条记录位于数据区之外"),
    "why-record-size": ("a record's size does not fit its shape", "某条记录的大小与其形状不符"),
    "why-record-sharing": ("two records share some of their bytes", "两条记录共用了部分字节"),
    # the journal
    "why-journal-start": ("the first line is not that of a journal", "首行不是日志的首行"),
    "why-journal-empty": ("it is empty", "其内容为空"),
    # findings, when they are compared
    "why-bad-check": ("a check is damaged ({0})", "某项检查结果已损坏（{0}）"),
    "why-bad-rounding": ("a finding on rounding is damaged ({0})", "关于舍入误差的发现已损坏（{0}）"),
    "why-bad-computing": (
        "a finding on what {0} computes in is damaged ({1})",
        "关于 {0} 计算精度的发现已损坏（{1}）",
    ),
    "why-bad-steps": ("the steps of {0} are damaged ({1})", "{0} 的计算步骤已损坏（{1}）"),
    "why-bad-growth": ("what noise moves is damaged ({0})", "噪声影响的记录已损坏（{0}）"),
    "why-bad-edit": ("the edit of {0} is damaged ({1})", "{0} 的修改记录已损坏（{1}）"),
    "why-bad-operations": ("the operations of {0} are damaged ({1})", "{0} 的算子记录已损坏（{1}）"),
    # a value that cannot be written
    "why-unknown-dtype": ("dtype {0}", "数据类型 {0}"),
    "why-other-storage": (
        "an array of {0} for {1}, which is stored as {2}",
        "数组类型为 {0}，而 {1} 应以 {2} 存储",
    ),
}
