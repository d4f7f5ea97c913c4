"""The fixed list of what a .pth may name, and what each is here: descriptions of tensors, plain tables, or a mere name.

Nothing of torch, of numpy or of the user's is called. What is not on the list is refused, whatever it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from aligner.dtypes import DTYPES
from aligner.errors import Reason
from aligner.weights.pickles import Global
from aligner.weights.stored import check_shape

STORAGES: Mapping[str, str] = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8",
    **dict.fromkeys(("QInt8Storage", "QUInt8Storage", "QUInt4x2Storage", "QUInt2x4Storage"), "uint8"),
    "QInt32Storage": "int32",
}
"""torch's classes of storages -> the type of their elements; of quantized ones, one of that size."""

_OPAQUE = (
    "argparse.Namespace collections.Counter collections.defaultdict collections.deque datetime.datetime "
    "datetime.timedelta datetime.date pathlib.Path pathlib.PosixPath pathlib.WindowsPath pathlib.PurePosixPath "
    "pathlib._local.PosixPath _codecs.encode fractions.Fraction decimal.Decimal uuid.UUID types.SimpleNamespace "
    "numpy.dtype numpy.ndarray numpy.core.multiarray.scalar numpy.core.multiarray._reconstruct "
    "numpy._core.multiarray.scalar numpy._core.multiarray._reconstruct torch.device torch.memory_format "
    "torch.serialization._get_layout torch._utils._rebuild_sparse_tensor torch._utils._rebuild_qtensor "
    "torch._utils._rebuild_device_tensor_from_numpy torch._utils._rebuild_meta_tensor_no_storage "
    "torch._utils._rebuild_nested_tensor torch.nn.parameter.UninitializedParameter omegaconf.dictconfig.DictConfig "
    "omegaconf.listconfig.ListConfig omegaconf.base.ContainerMetadata omegaconf.base.Metadata omegaconf.nodes.AnyNode "
    "typing.Any easydict.EasyDict yacs.config.CfgNode addict.addict.Dict"
)
_BUILTINS = "bool bytearray bytes complex dict float frozenset int list object set slice str tuple range"
OPAQUE = frozenset(
    [*_OPAQUE.split(), *(f"{where}.{name}" for where in ("builtins", "__builtin__") for name in _BUILTINS.split())]
)
"""What training scripts keep beside the weights. It is never made: only that it was there is known."""

_TYPE = re.compile(
    r"b?float\w{0,16}|u?int\d{1,2}|bool|complex\d{2,3}|half|double|long|short|q(u?)int\w{1,4}|bits\w{1,4}"
    r"|per_(tensor|channel)_\w{6,32}|strided|sparse_\w{2,4}|contiguous_format|preserve_format|channels_last(_3d)?"
)
TYPES = frozenset({"torch.Tensor", "torch._tensor.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer"})


@dataclass(frozen=True)
class Storage:
    """A run of elements in the archive, by its key."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True)
class Tensor:
    """A tensor as the pickle describes it; `dtype` "" where it is of a type that is not known here."""

    storage: Storage
    dtype: str
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Opaque:
    """Something that is no tensor and no plain data, by its name."""

    name: str


def check(found: Global) -> None:
    """See that the name is on the list.

    Raises:
        Reason: it is not.
    """
    path = found.path
    if not (path in MAKERS or path in OPAQUE or path in TYPES or _storage(found) is not None or _is_type(found)):
        raise Reason("why-pickle-names", path[:120])


def make(found: Global, arguments: tuple[Any, ...]) -> Any:
    """What the named thing is with these arguments.

    Raises:
        Reason: the arguments are none that torch writes.
    """
    maker = MAKERS.get(found.path)
    if maker is None:
        return Opaque(found.path)
    try:
        return maker(*arguments)
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, Reason):
            raise
        raise Reason("why-pickle-arguments", found.path) from error


def storage(identity: Any) -> Storage:
    """The storage that a persistent id of torch's stands for.

    Raises:
        Reason: it is none.
    """
    plain = isinstance(identity, tuple) and len(identity) >= 5 and identity[0] in ("storage", b"storage")
    if plain and isinstance(identity[1], Global):
        _, kind, key, _, count, *view = identity
        dtype = _storage(kind)
        counted = type(count) is int and 0 <= count < 1 << 48
        if dtype is not None and isinstance(key, (str, int)) and counted and view in ([], [None]):
            return Storage(str(key), dtype, count)
    raise Reason("why-pickle-arguments", "storage")


def _storage(found: Global) -> Optional[str]:
    """The type of the elements, if it is a class of storages."""
    return STORAGES.get(found.name) if found.module in ("torch", "torch.storage", "torch.cuda") else None


def _is_type(found: Global) -> bool:
    """Whether it is a dtype or layout of torch's."""
    return found.module == "torch" and bool(_TYPE.fullmatch(found.name))


def _tensor(held: Any, start: Any, shape: Any, strides: Any, *rest: Any) -> Any:
    """torch._utils._rebuild_tensor_v2: storage, offset, size, stride."""
    if isinstance(held, Opaque):
        return held
    sizes = check_shape(tuple(shape))
    steps = check_shape(tuple(strides))
    if not isinstance(held, Storage) or type(start) is not int or start < 0 or len(sizes) != len(steps):
        raise Reason("why-pickle-arguments", "torch._utils._rebuild_tensor_v2")
    return Tensor(held, held.dtype, start, sizes, steps)


def _typed(held: Any, start: Any, shape: Any, strides: Any, needs: Any, hooks: Any, dtype: Any, *rest: Any) -> Any:
    """torch._utils._rebuild_tensor_v3: the same with a type beside an untyped storage."""
    found = _tensor(held, start, shape, strides)
    word = dtype.name if isinstance(dtype, Global) and dtype.name in DTYPES else ""
    return Tensor(found.storage, word, found.start, found.shape, found.strides) if isinstance(found, Tensor) else found


def _wrapped(called: Any, kind: Any, arguments: Any, *rest: Any) -> Any:
    """torch._tensor._rebuild_from_type_v2: a function with its arguments, and the class of what it makes."""
    plain = isinstance(called, Global) and isinstance(kind, Global) and isinstance(arguments, tuple)
    if not plain or MAKERS.get(called.path) is _wrapped:
        raise Reason("why-pickle-arguments", "torch._tensor._rebuild_from_type_v2")
    return make(called, arguments)


def _table(items: Any = (), *rest: Any) -> Any:
    """collections.OrderedDict, with a list of pairs in old files."""
    found: dict[Any, Any] = {}
    for key, value in items:
        if isinstance(key, (str, int)):
            found[key] = value
    return found


MAKERS: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": _table,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed,
    "torch._utils._rebuild_parameter": lambda data, *rest: data,
    "torch._utils._rebuild_parameter_with_state": lambda data, *rest: data,
    "torch._tensor._rebuild_from_type_v2": _wrapped,
    "torch.Size": lambda *sizes: tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes,
}
"""Name -> what it makes here."""
