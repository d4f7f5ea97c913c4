"""What a Chinese sentence may hold besides Chinese: numbers, code and names. Any other word is English and refused.

Code is told by its form: `called(`, `given=`, `dotted.name`, `with_underscores`, `float16`, `ReLU`, 'a string', -o, or
a value in hand, [net.norm output.0]. A word that stands by itself has to be one of NAMES.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from aligner.explain.catalogue import LANGUAGES, sentences, spoken
from aligner.explain.phrase import Fact

VALUE = r"[\w.()]+ [\w.]+(?: #\d+)?"
IN_HAND = rf"\[{VALUE}(?:\[[^\]]*\])?(?: \+ {VALUE})?(?: >=? arange)?\]"
CODE = tuple(
    re.compile(pattern)
    for pattern in (
        r"`[^`]*`",
        r"'[^' ]*'|\"[^\" ]*\"",
        IN_HAND,
        r"(?<!\w)--?[a-z][\w-]*",
        r"\{[^{}]*\}",
        r"[A-Za-z_][\w.]*(?=\()",
        r"\b[A-Za-z_]\w*=[\w.]*",
        r"\b\w+(?:\.\w+)+",
        r"\b\w*[\d_]\w*",
        r"\b[A-Za-z]*[A-Z][a-z]*[A-Z]\w*",
    )
)

_WORDS = (
    "MindSpore MindTorch PyTorch Ascend PIL numpy torch aligner capture meshgrid Cell Module Parameter Conv Dense "
    "Linear Dropout Softmax Softmin Sigmoid Tanh Softplus Softsign Mish Pad Upsample Hardswish Hardsigmoid Hardtanh "
    "Hardshrink Softshrink Identity Huber Focal Inf Norm True False None identity softmax sigmoid tanh relu swish "
    "gelu erfinv clamp maximum exp log sqrt square mean sum var std max min median reshape transpose split roll "
    "unfold gather repeat tile round trunc floor ord resize dropout abs sin cos share weight bias gamma beta alpha "
    "delta eps epsilon momentum affine margin threshold blank blocks diagonal indexing ddof padding stride dilation "
    "mode reduction dim axis nonlinearity auto approximate full swap size query key value mask heads groups logits "
    "labels label target half interleaved nearest bilinear bicubic cubic linear constant edge reflect replicate "
    "circular symmetric wrap zeros border reflection grid left right first second loss input bool dtype slots out "
    "in batch length channel head scores weights width height index ids pad ones scale flip "
    "Adam AdamW nesterov amsgrad centered Task accumulate"
)
NAMES = frozenset(_WORDS.split())
"""Words that are names: of frameworks, layers, functions, settings and tensors."""

OWN = {
    "layer",
    "port_layer",
    "branch",
    "kind",
    "port_kind",
    "given",
    "called",
    "role",
    "roles",
    "port_parameter",
    "slot",
    "words",
    "framework",
}
"""Facts that are the user's own names, and the framework's."""

LINES = {"reference_code", "port_code", "reference_line", "port_line", "reference_order", "port_order"}
LISTS = {"operations", "missing", "extra", "ours", "theirs", "operation", "port_operation", "reference_operation"}
AS_CODE = LINES | LISTS | {"written", "setting", "differences"}
"""Facts that are code in any case: their words may be any, but do not stand side by side as in a sentence."""

SIDE_BY_SIDE = re.compile(r"[A-Za-z]{2,} +(?!True|False|None|in |not |and |or |for |if |is )[A-Za-z]{2,}")


def english(text: str) -> list[str]:
    """The English words of a text, without code and names."""
    for pattern in CODE:
        text = pattern.sub(" ", text)
    return [word for word in re.findall(r"[A-Za-z]{2,}", text) if word not in NAMES]


def faults(cause: str, facts: Mapping[str, Fact]) -> list[str]:
    """What is wrong with a cause that is told of these facts: English in Chinese, Chinese in English."""
    found = []
    chinese: dict[str, Any] = spoken(facts, "zh")
    for name in chinese:
        if name in OWN:
            chinese[name] = "x"
        elif name in AS_CODE and not re.search("[\u4e00-\u9fff]", str(chinese[name])):
            bare = re.sub(IN_HAND, "x", str(chinese[name]))
            if not cause.startswith("line-") and SIDE_BY_SIDE.search(bare):
                found.append(f"{name} is no code: {chinese[name]}")
            chinese[name] = "x"
        elif words := english(str(chinese[name])):
            found.append(f"{name} says {', '.join(words)}: {chinese[name]}")
    for text in sentences(cause, chinese, "zh"):
        if words := english(text):
            found.append(f"{', '.join(words)} in {text}")
    own = {name: "x" for name in facts if name in OWN | AS_CODE and isinstance(facts[name], str)}
    found += [text for text in sentences(cause, {**facts, **own}, "en") if re.search("[\u3000-\u9fff]", text)]
    return found


def holes(cause: str, facts: Mapping[str, Fact]) -> list[str]:
    """Sentences of a cause that lack a fact."""
    return [text for way in LANGUAGES for text in sentences(cause, facts, way) if re.search(r"<\w+>", text)]
