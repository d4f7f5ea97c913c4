"""Messages about dumps that were mixed up. The first line of each stands in the first line of a report."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {
    "mixup-self": (
        "{reference} and {port} are one and the same capture: it cannot differ from itself.\n"
        "Give the port's dump as the second one.",
        "{reference} 与 {port} 是同一次采集，与自身比对没有意义。\n请把待比对网络的转储作为第二个参数。",
    ),
    "mixup-swapped": (
        "The dumps are swapped: {reference} was captured from {port}, so {port} is the reference.\n"
        "Give them in the other order, the reference first.",
        "两个转储的顺序颠倒：{reference} 是以 {port} 为标杆采集的，因此 {port} 才是标杆。\n请交换顺序，把标杆放在前面。",
    ),
    "mixup-other-reference": (
        "{port} was captured from another reference, {made}: it ran on other weights or inputs than {reference}.\n"
        "Compare it with that one, or capture it again with --from {reference}.",
        "{port} 是以另一个标杆 {made} 采集的：其权重或输入与 {reference} 不同。\n"
        "请与该标杆比对，或用 --from {reference} 重新采集。",
    ),
    "mixup-other-capture": (
        "{port} was captured from another reference, {made}, which ran on the same weights and inputs as {reference}.\n"
        "To be exact about origins, capture the port again with --from {reference}.",
        "{port} 是以另一个标杆 {made} 采集的，其权重和输入与 {reference} 相同。\n"
        "如需准确的源头，请用 --from {reference} 重新采集待比对网络。",
    ),
    "mixup-unknown-capture": (
        "{port} was captured from another reference, {made}, than {reference}.\n"
        "To be exact about origins, capture the port again with --from {reference}.",
        "{port} 是以另一个标杆 {made} 采集的，而不是 {reference}。\n"
        "如需准确的源头，请用 --from {reference} 重新采集待比对网络。",
    ),
    "mixup-renewed-basis": (
        "{reference} was captured anew after {port} was captured from it, on other weights or inputs.\n"
        "Capture the port again with --from {reference}.",
        "{reference} 在 {port} 以其为标杆采集之后又重新采集过，且权重或输入已不同。\n"
        "请用 --from {reference} 重新采集待比对网络。",
    ),
    "mixup-renewed": (
        "{reference} was captured anew after {port} was captured from it: the same weights and inputs, other records.\n"
        "To be exact about origins, capture the port again with --from {reference}.",
        "{reference} 在 {port} 以其为标杆采集之后又重新采集过：权重和输入相同，但记录不同。\n"
        "如需准确的源头，请用 --from {reference} 重新采集待比对网络。",
    ),
    "mixup-two-ports": (
        "{reference} and {port} are both ports, captured from {made}; neither is the other's reference.\n"
        "Where they differ, either may be wrong: compare each with {made}.",
        "{reference} 与 {port} 都是以 {made} 为标杆采集的待比对网络，互不为标杆。\n"
        "二者不同之处，任何一方都可能有误：请分别与 {made} 比对。",
    ),
    "mixup-two-ports-apart": (
        "{reference} and {port} are both ports, captured from different references ({made}; {other}).\n"
        "Compare each with its own reference.",
        "{reference} 与 {port} 都是待比对网络，且以不同的标杆采集（{made}；{other}）。\n请分别与各自的标杆比对。",
    ),
    "mixup-two-references": (
        "{reference} and {port} are two captures of one program, {target}, made in the same way; neither is the other's port.\n"
        "Give the port's dump as the second one; to see whether a net repeats itself, this is right.",
        "{reference} 与 {port} 是同一程序 {target} 以相同方式进行的两次采集，互不为待比对网络。\n"
        "请把待比对网络的转储作为第二个参数；如果只是检查网络能否复现自身，则无需更改。",
    ),
    "mixup-inputs": (
        "{port} was run with --inputs {inputs}, which is not what {reference} was run on ({slot}).\n"
        "Capture the port again without --inputs, or the reference with the same file.",
        "{port} 采集时使用了 --inputs {inputs}，与 {reference} 的输入不同（{slot}）。\n"
        "请不加 --inputs 重新采集待比对网络，或用同一文件重新采集标杆。",
    ),
}
