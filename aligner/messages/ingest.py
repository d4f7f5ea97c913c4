"""Messages of `aligner import`."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {
    "ingest-no-folder": (
        "{path} is no folder.\nGive the folder that stands as `path` in the file named by MINDSPORE_DUMP_CONFIG.",
        "{path} 不是目录。\n请给出 MINDSPORE_DUMP_CONFIG 所指文件中 `path` 对应的目录。",
    ),
    "ingest-unreadable": (
        "{path} cannot be read: {reason}.\nCheck its permissions.",
        "无法读取 {path}：{reason}。\n请检查其权限。",
    ),
    "ingest-empty": (
        "{path} holds no values that MindSpore dumped (files with other names: {strange}, links that were not followed: {links}).\n"
        "Only GRAPH_MODE and @ms.jit write them: `aligner import --config {path}` writes the configuration and says how to run.",
        "{path} 中没有 MindSpore 转储的数据（其他名称的文件：{strange}，未跟随的链接：{links}）。\n"
        "只有 GRAPH_MODE 和 @ms.jit 会写出数据：`aligner import --config {path}` 可生成配置并说明如何运行。",
    ),
    "ingest-hollow": (
        "The values in {path} claim {apparent} bytes, of which the disk holds {stored}: nearly all of it is holes.\n"
        "Dump again, or copy the folder again from where it was made.",
        "{path} 中的数据声称共 {apparent} 字节，而磁盘上只有 {stored} 字节：几乎全是空洞。\n请重新转储，或从生成它的机器重新复制该目录。",
    ),
    "ingest-statistics-only": (
        "{path} holds statistics only (statistic.csv), no values.\n"
        'Dump again with "saved_data": "tensor"; `aligner import --config {path}` writes such a configuration.',
        '{path} 中只有统计信息（statistic.csv），没有数据。\n请以 "saved_data": "tensor" 重新转储；`aligner import --config {path}` 可生成该配置。',
    ),
    "ingest-serials-only": (
        "{path} holds {count} files in the device's own form, which only CANN's tools can read.\n"
        'Dump again with "e2e_dump_settings": {{"enable": true}}, or turn them into .npy with msaccucmp.py first.',
        "{path} 中有 {count} 个设备自身格式的文件，只有 CANN 的工具能够读取。\n"
        '请设置 "e2e_dump_settings": {{"enable": true}} 后重新转储，或先用 msaccucmp.py 转换为 .npy。',
    ),
    "ingest-choose": (
        "{path} holds several dumps, or not the one asked for; there are: {known}.\nChoose one of these with {option}.",
        "{path} 中有多份转储，或没有所指定的一份；现有：{known}。\n请用 {option} 选择其中之一。",
    ),
    "ingest-no-layers": (
        "None of the {count} values in {path} tells which layer it belongs to: under @ms.jit MindSpore forgets it.\n"
        "Run the net in GRAPH_MODE instead (set_context(mode=GRAPH_MODE), no @ms.jit around it), or use `aligner capture --mode graph`.",
        "{path} 中的 {count} 个数据均无法得知属于哪一层：在 @ms.jit 下 MindSpore 不保留该信息。\n"
        "请改用 GRAPH_MODE 运行（set_context(mode=GRAPH_MODE)，外层不加 @ms.jit），或使用 `aligner capture --mode graph`。",
    ),
    "ingest-options": (
        "Say what to import and where to: `aligner import DIR -o port.h5`; or `aligner import --config DIR` to prepare a run.\n"
        "Run `aligner import --help` for examples.",
        "请指定导入的目录和输出：`aligner import DIR -o port.h5`；或用 `aligner import --config DIR` 准备一次运行。\n"
        "请运行 `aligner import --help` 查看示例。",
    ),
    "ingest-net-form": (
        "'{text}' names no function that builds a net; wanted FILE.py:NAME or package.module:NAME.\nFor example --net net.py:build.",
        "'{text}' 不是构造网络的函数；应为 FILE.py:NAME 或 package.module:NAME。\n例如 --net net.py:build。",
    ),
    "ingest-net-framework": (
        "--net gave a net of {framework}, but only MindSpore writes such files.\nName the MindSpore net that was dumped.",
        "--net 给出的是 {framework} 网络，而只有 MindSpore 会写出此类文件。\n请指定被转储的 MindSpore 网络。",
    ),
    "ingest-config-folder": (
        "{path} cannot be made or written to: {reason}.\nGive another folder with --config.",
        "无法创建或写入 {path}：{reason}。\n请用 --config 指定其他目录。",
    ),
    "ingest-config-exists": (
        "{path} is there already.\nGive another folder with --config, or --force to write it anew.",
        "{path} 已存在。\n请用 --config 指定其他目录，或加 --force 重新写入。",
    ),
    "ingest-config-not-empty": (
        "{path} holds values of an earlier run; those of the next one would be mixed with them.\n"
        "Give another folder with --config, or remove {path} first.",
        "{path} 中已有之前运行的数据，与下一次运行的数据会混在一起。\n请用 --config 指定其他目录，或先删除 {path}。",
    ),
    "ingest-config-written": (
        "{config} is written. Run the port once in GRAPH_MODE with it, on the reference's weights and inputs:\n"
        "    MINDSPORE_DUMP_CONFIG={config} python run_port.py\n"
        "where run_port.py is, for a net that `build` makes:\n"
        "    import aligner, mindspore as ms\n"
        "    ms.set_context(mode=ms.GRAPH_MODE)\n"
        "    net = build()\n"
        '    replay = aligner.replay("ref.h5", net)\n'
        "    net(*replay.inputs())\n"
        "Then: aligner import {folder} -o port.h5",
        "已写入 {config}。请用它在 GRAPH_MODE 下以标杆的权重和输入运行一次待比对网络：\n"
        "    MINDSPORE_DUMP_CONFIG={config} python run_port.py\n"
        "其中 run_port.py（网络由 build 构造）为：\n"
        "    import aligner, mindspore as ms\n"
        "    ms.set_context(mode=ms.GRAPH_MODE)\n"
        "    net = build()\n"
        '    replay = aligner.replay("ref.h5", net)\n'
        "    net(*replay.inputs())\n"
        "然后：aligner import {folder} -o port.h5",
    ),
    "ingest-progress": ("{done} of {total} files, {size}", "已读取 {done}/{total} 个文件，{size}"),
    "imported": (
        "{path}: {records} records of {layers} layers in {steps} step(s), {size}, from {folder} ({seconds} s)",
        "{path}：{records} 条记录，{layers} 层，{steps} 步，{size}，来自 {folder}（{seconds} 秒）",
    ),
    "ingest-next": ("Next: aligner compare ref.h5 {path}", "下一步：aligner compare ref.h5 {path}"),
    "ingest-partial": (
        "imported from {path}: operators tell of their values, not of settings, shapes between layers, or a forced pass. "
        "What is not in it is not missed, and a cause can hardly be proved.\n"
        "For origins and causes run `aligner capture --from` where the net can be run.",
        "导入自 {path}：算子只提供其数据，不含设置、层间形状和强制对齐运行。其中没有的内容不视为缺失，原因也难以证实。\n"
        "如需定位源头与原因，请在可以运行该网络的环境中使用 `aligner capture --from`。",
    ),
    "ingest-uncounted": (
        "how often {layers} ran cannot be told from the operators ({count} layers): their values are left out, those of the layers inside are there.\n"
        "Use `aligner capture --mode graph` if these layers matter.",
        "无法从算子得知 {layers} 运行了几次（{count} 层）：未导入它们的数据，其内部各层的数据仍在。\n"
        "如需这些层，请使用 `aligner capture --mode graph`。",
    ),
    "ingest-unvalued": (
        "several values go into or out of {layers} ({count} layers), and which is which cannot be told: left out there.\n"
        "Use `aligner capture --mode graph` if they matter; the layers inside are there.",
        "{layers}（{count} 层）有多个输入或输出，无法区分各是哪一个：已略去。\n"
        "如需这些数据，请使用 `aligner capture --mode graph`；其内部各层的数据仍在。",
    ),
    "ingest-placeless": (
        "of {count} operators MindSpore has forgotten the layer (functions that it expands while it compiles); they count as code between layers.\n"
        "Nothing to do, unless a layer is missing for that: then use `aligner capture --mode graph`.",
        "MindSpore 未保留 {count} 个算子所属的层（编译时展开的函数）；它们被视为层间代码。\n"
        "无需处理；若因此缺少某一层，请使用 `aligner capture --mode graph`。",
    ),
    "ingest-backward": (
        "{count} operators of the backward pass are left out: gradients cannot be given to layers.\n"
        "Capture them with `aligner capture --gradients`.",
        "略去了 {count} 个反向传播算子：无法将梯度对应到各层。\n请使用 `aligner capture --gradients` 采集梯度。",
    ),
    "ingest-tiled": (
        "{count} values are in the device's own tiles (NC1HWC0, FRACTAL_NZ, ...) and are left out.\n"
        'Dump again with "trans_flag": true.',
        '{count} 个数据为设备自身的分块格式（NC1HWC0、FRACTAL_NZ 等），已略去。\n请设置 "trans_flag": true 后重新转储。',
    ),
    "ingest-unread": (
        "{count} files are no whole plain arrays and are left out, such as {name}: {reason}.\n"
        "Dump again if the run was cut off; MindSpore itself writes some values wrongly that no layer hands on, these do not matter.",
        "{count} 个文件不是完整的普通数组，已略去，例如 {name}：{reason}。\n"
        "如果运行曾被中断，请重新转储；MindSpore 自身会写错某些不由任何层输出的数据，这些没有影响。",
    ),
    "ingest-unknown-parameters": (
        "{count} values are parameters of no known layer, or inputs in an unknown order, and are left out: {names}.\n"
        "Name the net with --net FILE.py:NAME.",
        "{count} 个数据不属于任何已知层的参数，或为顺序未知的输入，已略去：{names}。\n请用 --net FILE.py:NAME 指定网络。",
    ),
    "ingest-repeated": (
        "everything stands in {path} {count} times, as after several runs into one folder; the last run is taken.\n"
        "Give each run a folder of its own.",
        "{path} 中的全部数据重复了 {count} 次，像是多次运行写入了同一目录；取最后一次运行。\n请为每次运行使用单独的目录。",
    ),
    "ingest-links": (
        "{count} links were not followed.\nCopy the files themselves if they belong to the dump.",
        "有 {count} 个链接未被跟随。\n如果它们属于该转储，请复制文件本身。",
    ),
}
