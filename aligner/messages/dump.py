"""Messages about dump files."""

from __future__ import annotations

_UNSAFE = (
    "Nothing of it was read. Use a dump as aligner wrote it, from a place you trust.",
    "没有读取其中任何内容。请使用 aligner 写出且来源可信的转储。",
)

MESSAGES: dict[str, tuple[str, str]] = {
    # --- writing
    "dump-exists": (
        "{path} exists already.\nChoose another name, or replace it with --force (force=True in Python).",
        "{path} 已存在。\n请另取文件名，或用 --force（Python 中为 force=True）覆盖。",
    ),
    "dump-is-folder": (
        "{path} is a folder, not a dump.\nName a file, for example {path}/net.h5.",
        "{path} 是目录，不是转储文件。\n请给出文件名，例如 {path}/net.h5。",
    ),
    "dump-name-folder": (
        "{path} ends like a folder's name, and there is no such folder.\nName a file, for example {path}net.h5.",
        "{path} 的写法是目录名，而该目录不存在。\n请给出文件名，例如 {path}net.h5。",
    ),
    "dump-name": (
        "Cannot create {path}: {reason}.\nChoose another name.",
        "无法创建 {path}：{reason}。\n请另取文件名。",
    ),
    "dump-no-file": (
        "{path} is not a regular file and is not replaced.\nChoose another name.",
        "{path} 不是普通文件，不会被覆盖。\n请另取文件名。",
    ),
    "dump-no-folder": (
        "Cannot create {path}: there is no folder {folder}.\nCreate the folder, or choose another place.",
        "无法创建 {path}：目录 {folder} 不存在。\n请先创建该目录，或换一个位置。",
    ),
    "dump-not-writable": (
        "Cannot write {path}: {reason}.\nChoose a folder you may write to; {folder} is not one.",
        "无法写入 {path}：{reason}。\n请选择有写权限的目录；{folder} 没有写权限。",
    ),
    "dump-in-use": (
        "{path} is being written by another process.\nWait for it to end, or choose another name.",
        "另一个进程正在写入 {path}。\n请等待其结束，或另取文件名。",
    ),
    "dump-disk-full": (
        "The disk is full while writing {path} ({reason}); the {captured} records captured so far are readable.\n"
        "Make room or choose another disk, or capture less: --layers GLOB, --no-weights, fewer --steps.",
        "写入 {path} 时磁盘已满（{reason}）；此前采集的 {captured} 条记录可以读取。\n"
        "请清理空间或换一块磁盘，或减少采集内容：--layers GLOB、--no-weights、减少 --steps。",
    ),
    "dump-no-memory": (
        "No memory was left while writing {path}; the {captured} records captured so far are readable.\n"
        "Free memory, or capture less: --layers GLOB, fewer --steps, a smaller batch.",
        "写入 {path} 时内存不足；此前采集的 {captured} 条记录可以读取。\n"
        "请释放内存，或减少采集内容：--layers GLOB、减少 --steps、减小批大小。",
    ),
    "dump-write-failed": (
        "Writing {path} failed: {reason}; {captured} records were captured before.\nCheck the disk, then capture again.",
        "写入 {path} 失败：{reason}；此前已采集 {captured} 条记录。\n请检查磁盘后重新采集。",
    ),
    "dump-gone": (
        "{path} was deleted or replaced by somebody else while it was written.\nCapture again, under a name that nothing else uses.",
        "{path} 在写入期间被删除或被其他程序替换。\n请换一个没有其他程序使用的文件名，重新采集。",
    ),
    "dump-dtype": (
        "A value of {layer} cannot be stored in {path}: {found}.\n"
        "This is a mistake of the adapter: it must give one of the dtypes in aligner.dtypes.",
        "{layer} 的值无法存入 {path}：{found}。\n这是适配器的错误：它必须给出 aligner.dtypes 中的数据类型。",
    ),
    "dump-order": (
        "A record of {layer} for {path} has the order number {order}, which is taken or negative.\n"
        "Number the records of a dump from 0, each number once.",
        "写入 {path} 的 {layer} 记录的序号 {order} 已被使用或为负数。\n请从 0 起为转储中的记录编号，每个序号只用一次。",
    ),
    "dump-closed": (
        "{path} is closed already.\nKeep it open for as long as it is used.",
        "{path} 已关闭。\n请在使用期间保持其打开。",
    ),
    "dump-forked": (
        "{path} belongs to the process that opened it, and this is a fork of it.\n"
        "Run the net in the process that started the capture.",
        "{path} 属于打开它的进程，而当前进程是其 fork 出的子进程。\n请在启动采集的进程中运行网络。",
    ),
    # --- reading
    "dump-missing": (
        "There is no file {path}.\nCheck the name; `aligner capture` writes dumps.",
        "文件 {path} 不存在。\n请检查文件名；转储由 `aligner capture` 生成。",
    ),
    "dump-unreadable": (
        "{path} cannot be read: {reason}.\nCheck its permissions and the disk.",
        "无法读取 {path}：{reason}。\n请检查其权限和磁盘。",
    ),
    "dump-empty": (
        "{path} is empty (0 bytes).\nCapture again: nothing was written into it.",
        "{path} 为空（0 字节）。\n请重新采集：其中没有写入任何内容。",
    ),
    "dump-other-kind": (
        "{path} is a {kind} file, not an aligner dump.\n"
        "A dump holds what every layer computed; make one with `aligner capture MODEL -o net.h5`.",
        "{path} 是 {kind} 文件，不是 aligner 转储。\n转储保存各层的计算结果；请用 `aligner capture MODEL -o net.h5` 生成。",
    ),
    "dump-unknown": (
        "{path} is not an aligner dump: it does not begin as one.\n"
        "Check the name; make a dump with `aligner capture MODEL -o net.h5`.",
        "{path} 不是 aligner 转储：文件开头不符。\n请检查文件名；用 `aligner capture MODEL -o net.h5` 生成转储。",
    ),
    "dump-foreign": (
        "{path} is an HDF5 file, but not written by aligner.\nMake a dump with `aligner capture MODEL -o net.h5`.",
        "{path} 是 HDF5 文件，但不是 aligner 写的。\n请用 `aligner capture MODEL -o net.h5` 生成转储。",
    ),
    "dump-newer": (
        "{path} has format {found}; this aligner reads up to format {wanted}.\nUpdate aligner: pip install -U aligner.",
        "{path} 的格式版本为 {found}；当前 aligner 最高支持版本 {wanted}。\n请升级：pip install -U aligner。",
    ),
    "dump-truncated": (
        "{path} is truncated: {found} bytes found, {wanted} wanted.\nCopy it again from where it was captured.",
        "{path} 不完整：实际 {found} 字节，应为 {wanted} 字节。\n请从采集它的机器重新复制。",
    ),
    "dump-longer": (
        "{path} is longer than it was written: {found} bytes found, {wanted} wanted; something was added to it.\n"
        "Use the dump as aligner wrote it; copy it again from where it was captured.",
        "{path} 比写入时长：实际 {found} 字节，应为 {wanted} 字节；有内容被添加。\n"
        "请使用 aligner 写出的原始转储；从采集它的机器重新复制。",
    ),
    "dump-bad": (
        "{path} is damaged: {reason}.\nCopy it again from where it was captured, or capture again.",
        "{path} 已损坏：{reason}。\n请从采集它的机器重新复制，或重新采集。",
    ),
    "dump-hollow": (
        "{path} claims {size} bytes, of which the disk holds {stored}: nearly all of it is holes.\n"
        "Copy it again from where it was captured, or capture again.",
        "{path} 声称有 {size} 字节，而磁盘上只有 {stored} 字节：几乎全是空洞。\n请从采集它的机器重新复制，或重新采集。",
    ),
    "dump-damaged": (
        "{path} is damaged: the values of {layer} do not fit their checksum.\n"
        "Copy it again from where it was captured, or capture again.",
        "{path} 已损坏：{layer} 的值与校验和不符。\n请从采集它的机器重新复制，或重新采集。",
    ),
    "dump-form": (
        "{layer} in {path} is kept as '{form}', which this aligner cannot load.\nUpdate aligner: pip install -U aligner.",
        "{path} 中的 {layer} 以 '{form}' 形式保存，当前 aligner 无法读取。\n请升级：pip install -U aligner。",
    ),
    "dump-no-journal": (
        "{path} was never closed, and its journal {journal} is not beside it.\n"
        "Put the journal back beside it, or capture again.",
        "{path} 未正常关闭，且旁边没有其日志 {journal}。\n请将日志放回同一目录，或重新采集。",
    ),
    "dump-bad-journal": (
        "{path} was never closed, and its journal {journal} cannot be read: {reason}.\nCapture again.",
        "{path} 未正常关闭，且其日志 {journal} 无法读取：{reason}。\n请重新采集。",
    ),
    "dump-other-journal": (
        "{path} was never closed, and {journal} is the journal of another dump.\n"
        "Put its own journal beside it, or capture again.",
        "{path} 未正常关闭，而 {journal} 是另一个转储的日志。\n请放回其自身的日志，或重新采集。",
    ),
    "dump-journal-alone": (
        "There is no file {path}, only its journal {journal}.\nPut the dump back beside its journal.",
        "文件 {path} 不存在，只有其日志 {journal}。\n请将转储放回日志旁边。",
    ),
    "dump-being-written": (
        "{path} is still being written; this is what it holds so far.\nOpen it again when the capture has ended.",
        "{path} 仍在写入中；以下是目前的内容。\n请在采集结束后重新打开。",
    ),
    "dump-journal-damaged": (
        "The journal is damaged: {lines} lines and {records} records were left out.\n"
        "Everything else can be used; capture again for the whole.",
        "日志已损坏：丢弃了 {lines} 行和 {records} 条记录。\n其余内容可以使用；如需完整内容请重新采集。",
    ),
    "dump-changed": (
        "{path} was changed after aligner wrote it (its seal is broken).\n"
        "Use the dump as it was written; copy it again from where it was captured.",
        "{path} 在 aligner 写出后被修改（封印已破坏）。\n请使用原始转储；从采集它的机器重新复制。",
    ),
    # --- what the guard found in an HDF5 file
    "guard-external-link": (
        "{path} is not safe to read: '{name}' is a link to another file, {target}.\n" + _UNSAFE[0],
        "读取 {path} 不安全：'{name}' 是指向另一个文件 {target} 的链接。\n" + _UNSAFE[1],
    ),
    "guard-soft-link": (
        "{path} is not safe to read: '{name}' is a soft link to {target}.\n" + _UNSAFE[0],
        "读取 {path} 不安全：'{name}' 是指向 {target} 的软链接。\n" + _UNSAFE[1],
    ),
    "guard-other-link": (
        "{path} is not safe to read: '{name}' is a link of an unknown kind.\n" + _UNSAFE[0],
        "读取 {path} 不安全：'{name}' 是未知类型的链接。\n" + _UNSAFE[1],
    ),
    "guard-external-storage": (
        "{path} is not safe to read: '{name}' takes its values from another file, {target}.\n" + _UNSAFE[0],
        "读取 {path} 不安全：'{name}' 的数据取自另一个文件 {target}。\n" + _UNSAFE[1],
    ),
    "guard-virtual": (
        "{path} is not safe to read: '{name}' is a virtual dataset, whose values stand in other files.\n" + _UNSAFE[0],
        "读取 {path} 不安全：'{name}' 是虚拟数据集，其数据位于其他文件。\n" + _UNSAFE[1],
    ),
    "guard-huge": (
        "{path} is not safe to read: '{name}' declares {bytes} bytes in a file of {size}.\n" + _UNSAFE[0],
        "读取 {path} 不安全：'{name}' 声明了 {bytes} 字节，而文件只有 {size} 字节。\n" + _UNSAFE[1],
    ),
    "guard-bomb": (
        "{path} is not safe to read: '{name}' unpacks to {bytes} bytes from a file of {size}.\n" + _UNSAFE[0],
        "读取 {path} 不安全：'{name}' 会从 {size} 字节的文件解压出 {bytes} 字节。\n" + _UNSAFE[1],
    ),
    "guard-outside": (
        "{path} is not safe to read: '{name}' claims {bytes} bytes that do not stand in the file of {size}.\n"
        + _UNSAFE[0],
        "读取 {path} 不安全：'{name}' 声称有 {bytes} 字节，但不在这个 {size} 字节的文件之内。\n" + _UNSAFE[1],
    ),
    "guard-filter": (
        "{path} is not safe to read: '{name}' needs the unknown filter {filter}.\n" + _UNSAFE[0],
        "读取 {path} 不安全：'{name}' 需要未知的过滤器 {filter}。\n" + _UNSAFE[1],
    ),
    "guard-type": (
        "{path} is not safe to read: '{name}' has a type no dump has ({kind}).\n" + _UNSAFE[0],
        "读取 {path} 不安全：'{name}' 的类型（{kind}）不会出现在转储中。\n" + _UNSAFE[1],
    ),
    "guard-name": (
        "{path} is not safe to read: the name {name!r} cannot be printed or misleads.\n" + _UNSAFE[0],
        "读取 {path} 不安全：名称 {name!r} 无法打印或有误导性。\n" + _UNSAFE[1],
    ),
    "guard-cycle": (
        "{path} is not safe to read: the group '{name}' contains itself.\n" + _UNSAFE[0],
        "读取 {path} 不安全：组 '{name}' 包含自身。\n" + _UNSAFE[1],
    ),
    "guard-deep": (
        "{path} is not safe to read: groups are nested deeper than {limit} levels at '{name}'.\n" + _UNSAFE[0],
        "读取 {path} 不安全：组在 '{name}' 处的嵌套超过 {limit} 层。\n" + _UNSAFE[1],
    ),
    "guard-many": (
        "{path} is not safe to read: there are more than {limit} objects.\n" + _UNSAFE[0],
        "读取 {path} 不安全：对象超过 {limit} 个。\n" + _UNSAFE[1],
    ),
    "guard-attribute": (
        "{path} is not safe to read: the attribute '{name}' takes {bytes} bytes, at most {limit} are allowed.\n"
        + _UNSAFE[0],
        "读取 {path} 不安全：属性 '{name}' 占 {bytes} 字节，最多允许 {limit} 字节。\n" + _UNSAFE[1],
    ),
    "guard-attributes": (
        "{path} is not safe to read: '{name}' has {count} attributes, at most {limit} are allowed.\n" + _UNSAFE[0],
        "读取 {path} 不安全：'{name}' 有 {count} 个属性，最多允许 {limit} 个。\n" + _UNSAFE[1],
    ),
    "guard-malformed": (
        "{path} is not safe to read: its HDF5 structure is malformed (HDF5: `{reason}`).\n" + _UNSAFE[0],
        "读取 {path} 不安全：其 HDF5 结构有误（HDF5：`{reason}`）。\n" + _UNSAFE[1],
    ),
    "guard-memory": (
        "{path} is not safe to read: looking at it takes more than {gigabytes} GiB of memory.\n" + _UNSAFE[0],
        "读取 {path} 不安全：检查它需要超过 {gigabytes} GiB 内存。\n" + _UNSAFE[1],
    ),
    "guard-slow": (
        "{path} is not safe to read: looking at it takes more than {seconds} seconds.\n" + _UNSAFE[0],
        "读取 {path} 不安全：检查它需要超过 {seconds} 秒。\n" + _UNSAFE[1],
    ),
    "guard-crash": (
        "{path} is not safe to read: the HDF5 library fails on it (status {status}).\n" + _UNSAFE[0],
        "读取 {path} 不安全：HDF5 库处理它时失败（状态 {status}）。\n" + _UNSAFE[1],
    ),
}
