"""The table of operations: a word, the names that mean it, the arguments that matter, in their order, with defaults.

Names are lower case without underscores; the framework is not told, for none of them means two things (but `select`
and `gather`, whose arguments tell). Operands are tensors wherever they stand among the arguments, so that these are the
others only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

_TABLE = """
add: add addext addv2 iadd radd adds
sub: sub subtract subext isub rsub
mul: mul multiply imul rmul muls
div: div truedivide truediv divide realdiv rtruediv itruediv rdiv divs | rounding_mode=None
floordiv: floordivide floordiv rfloordiv ifloordiv
pow: pow tensorpow rpow ipow power
mod: remainder mod rmod imod
fmod: fmod
maximum: maximum
minimum: minimum
lt: lt less
le: le lessequal
gt: gt greater
ge: ge greaterequal
eq: eq equal
ne: ne notequal
and: and logicaland bitwiseand iand rand
or: or logicalor bitwiseor ior ror
xor: xor logicalxor bitwisexor
not: not logicalnot invert bitwisenot
neg: neg negative
square: square
sqrt: sqrt
rsqrt: rsqrt
exp: exp
expm1: expm1
log: log
log1p: log1p
log2: log2
log10: log10
logaddexp: logaddexp
exp2: exp2
abs: abs absolute
erf: erf
erfinv: erfinv
erfc: erfc
lgamma: lgamma gammaln
isnan: isnan
isinf: isinf
isfinite: isfinite
sin: sin
cos: cos
tan: tan
asin: asin arcsin
acos: acos arccos
atan: atan arctan
sinh: sinh
cosh: cosh
asinh: asinh arcsinh
acosh: acosh arccosh
atanh: atanh arctanh
hypot: hypot
deg2rad: deg2rad radians
rad2deg: rad2deg degrees
atan2: atan2 arctan2
floor: floor
ceil: ceil
round: round
trunc: trunc fix
frac: frac
sign: sign
reciprocal: reciprocal inv
tanh: tanh
sigmoid: sigmoid
logsigmoid: logsigmoid
relu: relu
relu6: relu6
silu: silu swish siluext
mish: mish
hardswish: hardswish hswish
hardsigmoid: hardsigmoid hsigmoid
elu: elu | alpha=1.0
selu: selu
celu: celu | alpha=1.0
leaky_relu: leakyrelu | slope=0.01
prelu: prelu
softsign: softsign
softplus: softplus softplusext | beta=1 threshold=20
gelu: gelu | approximate='none'
glu: glu | axis=-1
clamp: clamp clip clipbyvalue clampscalar clamptensor clampmin clampmax | min=None max=None
softmax: softmax | axis=None
log_softmax: logsoftmax | axis=None
logsumexp: logsumexp | axis=None keepdims=False
sum: sum reducesum sumext | axis=None keepdims=False
mean: mean reducemean meanext | axis=None keepdims=False
prod: prod reduceprod | axis=None keepdims=False
max: max amax reducemax argmaxwithvalue | axis=None keepdims=False
min: min amin reducemin argminwithvalue | axis=None keepdims=False
any: any reduceany | axis=None keepdims=False
all: all reduceall | axis=None keepdims=False
std: std | axis=None correction=1 keepdims=False
var: var | axis=None correction=1 keepdims=False
norm: norm vectornorm linalgnorm linalgvectornorm lpnorm | p=2 axis=None keepdims=False
normalize: normalize l2normalize | p=2 axis=1 eps=1e-12
argmax: argmax | axis=None keepdims=False
argmin: argmin | axis=None keepdims=False
cumsum: cumsum cumsumext | axis=None
cumprod: cumprod | axis=None
cummax: cummax | axis=None
cummin: cummin | axis=None
diff: diff | axis=-1
topk: topk | k=None axis=-1 largest=True
nonzero: nonzero argwhere
sort: sort | axis=-1 descending=False
bucketize: bucketize searchsorted digitize | right=False
argsort: argsort | axis=-1 descending=False
matmul: matmul bmm mm batchmatmul rmatmul imatmul mv
addmm: addmm baddbmm | beta=1 alpha=1
linear: linear dense
einsum: einsum | equation=None
outer: outer
cross: cross linalgcross | axis=None
inverse: inverse linalginv matrixinverse
lerp: lerp
cdist: cdist | p=2.0
diagonal: diagonal | offset=0 axis1=0 axis2=1
trace: trace
dot: dot
scaled_dot_product_attention: scaleddotproductattention | p=0.0 is_causal=False scale=None
transpose: transpose permute t mt h mh swapaxes swapdims movedim moveaxis | perm=None
reshape: reshape view flatten unflatten squeeze unsqueeze expanddims viewas reshapeas ravel | shape=None
cat: cat concat concatenate append | axis=0
stack: stack | axis=0
split: split chunk tensorsplit unbind unstack | sizes=None axis=0
getitem: getitem select narrow slice | index=None
setitem: setitem | index=None
index_select: indexselect | axis=None
index_add: indexadd | axis=None
scatter: scatter scatteradd scatterreduce tensorscatterelements | axis=None reduction='none' value=None
segment_sum: unsortedsegmentsum | n=None
segment_max: unsortedsegmentmax | n=None
segment_min: unsortedsegmentmin | n=None
gather: gather gatherelements gatherd takealongdim | axis=None
embedding: embedding
expand: expand broadcastto expandas broadcast | shape=None
tile: tile repeat | reps=None
repeat_interleave: repeatinterleave | repeats=None axis=None
roll: roll | shifts=None axis=None
flip: flip reverse | axis=None
triu: triu | diagonal=0
tril: tril | diagonal=0
where: where
masked_fill: maskedfill | value=None
cast: to type astype typeas float half double long int bool bfloat16 tensor fromnumpy array asarray | dtype=None
arange: arange range | start=0 end=None step=1
linspace: linspace | start=None end=None steps=None
fill: zeros zeroslike ones oneslike full fulllike newzeros newones newfull | value=0 shape=None
eye: eye | n=None
meshgrid: meshgrid | indexing='ij'
one_hot: onehot | n=-1
pad: pad | pad=None mode='constant' value=0
interpolate: interpolate upsample | size=None mode='nearest' align_corners=False
grid_sample: gridsample | mode='bilinear' pad_mode='zeros' align_corners=False
pixel_shuffle: pixelshuffle | r=None
pixel_unshuffle: pixelunshuffle | r=None
unfold: unfold | kernel=None dilation=1 pad=0 stride=1
fold: fold | size=None kernel=None dilation=1 pad=0 stride=1
avg_pool: avgpool1d avgpool2d avgpool3d avgpool | kernel=None stride=None pad=0 ceil_mode=False include_pad=True
max_pool: maxpool1d maxpool2d maxpool3d maxpool | kernel=None stride=None pad=0 dilation=1 ceil_mode=False
adaptive_avg_pool: adaptiveavgpool1d adaptiveavgpool2d | size=None
adaptive_max_pool: adaptivemaxpool1d adaptivemaxpool2d | size=None
conv: conv1d conv2d conv3d | stride=1 pad=0 dilation=1 groups=1
layer_norm: layernorm | shape=None eps=1e-05
rms_norm: rmsnorm | shape=None eps=None
group_norm: groupnorm | groups=None eps=1e-05
batch_norm: batchnorm | training=False momentum=0.1 eps=1e-05
dropout: dropout dropout2d | p=0.5 training=True
cross_entropy: crossentropy crossentropyloss | ignore_index=-100 reduction='mean' label_smoothing=0.0
nll_loss: nllloss | ignore_index=-100 reduction='mean'
mse_loss: mseloss | reduction='mean'
l1_loss: l1loss | reduction='mean'
smooth_l1_loss: smoothl1loss | reduction='mean' beta=1.0
binary_cross_entropy: binarycrossentropy bceloss | reduction='mean'
binary_cross_entropy_with_logits: binarycrossentropywithlogits bcewithlogitsloss | reduction='mean'
kl_div: kldiv | reduction='mean' log_target=False
cosine_similarity: cosinesimilarity | axis=1 eps=1e-08
real: real
imag: imag
conj: conj conjphysical
complex: complex
polar: polar
fft: fft fftfft | n=None axis=-1 norm=None
ifft: ifft fftifft | n=None axis=-1 norm=None
rfft: rfft fftrfft | n=None axis=-1 norm=None
irfft: irfft fftirfft | n=None axis=-1 norm=None
fft2: fft2 fftfft2 | s=None axis=(-2,-1) norm=None
ifft2: ifft2 fftifft2 | s=None axis=(-2,-1) norm=None
rfft2: rfft2 fftrfft2 | s=None axis=(-2,-1) norm=None
irfft2: irfft2 fftirfft2 | s=None axis=(-2,-1) norm=None
same: identity contiguous detach clone copy stopgradient requiresgrad cpu
"""

PARAMETERS: Mapping[str, str] = {
    **dict.fromkeys(("dim", "dims", "axis", "axes", "start_dim"), "axis"),
    **dict.fromkeys(("keepdim", "keep_dims", "keepdims"), "keepdims"),
    **dict.fromkeys(("correction", "ddof", "unbiased"), "correction"),
    **dict.fromkeys(("eps", "epsilon"), "eps"),
    **dict.fromkeys(("pad", "padding"), "pad"),
    **dict.fromkeys(("groups", "group", "num_groups"), "groups"),
    **dict.fromkeys(("kernel", "kernel_size"), "kernel"),
    **dict.fromkeys(("sizes", "split_size", "split_size_or_sections", "chunks", "split_sizes"), "sizes"),
    **dict.fromkeys(("size", "output_size"), "size"),
    **dict.fromkeys(("reps", "multiples", "repeat_times"), "reps"),
    **dict.fromkeys(("shifts", "shift"), "shifts"),
    **dict.fromkeys(("value", "fill_value"), "value"),
    **dict.fromkeys(("step", "delta"), "step"),
    **dict.fromkeys(("p", "ord", "dropout_p"), "p"),
    **dict.fromkeys(("n", "num_classes", "depth", "num_segments"), "n"),
    "negative_slope": "slope",
    "reduce": "reduction",
    "dim1": "axis1",
    "dim2": "axis2",
    "normalized_shape": "shape",
    "count_include_pad": "include_pad",
    "upscale_factor": "r",
    "downscale_factor": "r",
    "padding_mode": "pad_mode",
    "clip_value_min": "min",
    "clip_value_max": "max",
    "stop": "end",
    "num": "steps",
}
"""What the frameworks call an argument, and the word for it."""

OPERATORS: Mapping[str, str] = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "matmul": "@",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "and": "&",
    "or": "|",
    "xor": "^",
}
"""Words that Python has a sign for."""

COMMUTING = frozenset(("add", "mul", "maximum", "minimum", "eq", "ne", "and", "or", "xor"))

NUMBERED = frozenset((*OPERATORS, "maximum", "minimum", "where", "outer", "neg", "not", "atan2"))
"""Words whose plain numbers are operands: a tensor may stand there as well."""

INVISIBLE = frozenset(("same",))
"""Words of operations that change nothing."""

_ASKED = "size dim ndim numel isfloatingpoint iscomplex iscontiguous stride dtype item tolist asnumpy numpy shape rank"
QUESTIONS = frozenset(_ASKED.split())
"""Operations that make no tensor."""


@dataclass(frozen=True)
class Row:
    """An operation of the table."""

    word: str
    arguments: Mapping[str, object]
    """With defaults."""


def bare(name: str) -> str:
    """A name as the table has it."""
    return name.lower().rsplit(".", 1)[-1].replace("_", "")


_WRITING = re.compile(
    r"inplace|assign|setitem|scatter|copy|index_?(put|add)|set_|\w+_$|i(add|sub|mul|truediv|floordiv|mod|pow|matmul|and|or|xor)$"
)


def may_write(name: str) -> bool:
    """Whether an operation may write into what it is given, to go by its name."""
    return _WRITING.match(name) is not None or bare(name) in SILENT


SILENT = frozenset(("indexadd", "scatterupdate", "scatterndupdate", "scatterndadd", "scatterndsub"))
"""Operations of MindSpore's that write into what they are given, and hand on another value."""


def row(name: str) -> Optional[Row]:
    """What an operation of this name is."""
    return _ROWS.get(bare(name))


def arguments(word: str) -> Mapping[str, object]:
    """The arguments of a word, with defaults."""
    found = _ROWS.get(word.replace("_", ""))
    return {} if found is None else found.arguments


def _rows() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for line in _TABLE.strip().splitlines():
        word, _, rest = line.partition(": ")
        names, _, given = rest.partition(" | ")
        defaults = {key: ast.literal_eval(value) for key, _, value in (item.partition("=") for item in given.split())}
        for name in (word, *names.split()):
            rows.setdefault(bare(name), Row(word, defaults))
    return rows


_ROWS = _rows()
