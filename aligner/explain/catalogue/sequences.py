"""What a table or a recurrent layer did otherwise, told from its numbers."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry, Text

_LEFT: Text = ("Run so on the reference's input, {left} is left", "用标杆输入这样运行，剩余误差 {left}")

TABLES: tuple[Entry, ...] = (
    Entry(
        "embedding-rows-shifted",
        ("The table is read at index {step}", "查表的下标偏移了 {step}"),
        _LEFT,
        ("Take the offset off the indices, or give the table its extra rows", "去掉下标的偏移，或补上表的额外行"),
    ),
    Entry(
        "embedding-padding-row",
        ("Row {row} of the table is zero in the {who} only", "表的第 {row} 行只在{who}中为零"),
        ("All other rows agree; with that row zero too {left} is left", "其余各行一致；该行同样置零后误差为 {left}"),
        (
            "padding_idx makes its row zero at the start only: load the row as it is, or multiply by (ids != pad)",
            "padding_idx 只在初始化时把该行置零：按原样加载该行，或乘以 (ids != pad)",
        ),
    ),
    Entry(
        "embedding-index-out-of-range",
        ("Indices go up to {highest}, the table has {rows} rows", "下标最大为 {highest}，而表只有 {rows} 行"),
        ("Only what was looked up beyond the table differs", "只有越界查表的部分不同"),
        (
            "Make the table as long as the vocabulary; on Ascend nothing complains",
            "让表长不小于词表；Ascend 上越界不会报错",
        ),
    ),
)

RECURRENT: tuple[Entry, ...] = (
    Entry(
        "gate-order",
        ("The gates are taken in the order {order}", "门的次序为 {order}"),
        _LEFT,
        (
            "Split the product in torch's order: i, f, g, o for LSTM and r, z, n for GRU",
            "按 torch 的次序切分：LSTM 为 i, f, g, o，GRU 为 r, z, n",
        ),
    ),
    Entry(
        "recurrent-bias",
        ("Of the two biases the port adds: {bias}", "两个偏置中待比对只用了：{bias}"),
        _LEFT,
        ("Load and add bias_ih and bias_hh", "加载并相加 bias_ih 与 bias_hh"),
    ),
    Entry(
        "recurrent-backward-as-forward",
        ("The backward direction runs forward", "反向层按正向运行"),
        _LEFT,
        ("Turn the sequence round for the backward direction", "反向层应把序列倒转后再运行"),
    ),
    Entry(
        "recurrent-backward-not-turned",
        ("The backward direction's output is not turned back", "反向层的输出没有再倒转回来"),
        _LEFT,
        ("Turn its output round before it is concatenated", "拼接之前把其输出倒转回来"),
    ),
    Entry(
        "recurrent-reset-before",
        (
            "The GRU resets the hidden state before the product, torch resets the product",
            "GRU 的重置门作用在乘积之前，torch 作用在乘积之后",
        ),
        _LEFT,
        ("Compute n = tanh(W x + b + r * (U h + c))", "按 n = tanh(W x + b + r * (U h + c)) 计算"),
    ),
    Entry(
        "gru-update-inverted",
        ("The GRU's update gate is inverted", "GRU 的更新门取反了"),
        _LEFT,
        ("Compute h = (1 - z) * n + z * h", "按 h = (1 - z) * n + z * h 计算"),
    ),
    Entry(
        "recurrent-activation",
        ("The recurrent layer uses {activation}", "循环层使用了 {activation}"),
        _LEFT,
        ("Pass the reference's nonlinearity", "传入标杆的 nonlinearity"),
    ),
    Entry(
        "recurrent-tanh-approximation",
        (
            "The tanh inside is the one of MindSpore's CPU, off by up to 1e-4 for large inputs: nobody's mistake",
            "层内部的 tanh 为 MindSpore CPU 的实现，输入较大时误差可达 1e-4：并非移植错误",
        ),
        _LEFT,
        ("Allow 1e-4 here", "此处允许 1e-4 的误差"),
    ),
    Entry(
        "recurrent-state",
        ("The layer begins at zero, not at the state that it was given", "该层从零状态开始，而不是给定的初始状态"),
        _LEFT,
        (
            "Pass the initial state on: nn.LSTM(x, (h, c)), nn.GRU(x, h)",
            "传入初始状态：nn.LSTM(x, (h, c))、nn.GRU(x, h)",
        ),
    ),
    Entry(
        "rnn-packed-sequence-missing",
        (
            "The port goes on behind the end of short samples, the reference has zeros there",
            "待比对在短样本结束之后继续计算，标杆在那里为零",
        ),
        ("{steps} of {total} steps are zero in the reference only", "{total} 步中有 {steps} 步只在标杆中为零"),
        ("Pass seq_length to nn.LSTM, nn.GRU or nn.RNN", "给 nn.LSTM、nn.GRU 或 nn.RNN 传入 seq_length"),
    ),
)

ENTRIES = TABLES + RECURRENT
