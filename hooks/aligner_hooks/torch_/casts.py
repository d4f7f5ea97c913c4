"""In which types torch really computes: what autocast says, and what its operators make.

Casts sit inside the layers: an autocast region in a forward, a `.float()` before a softmax. A dispatch mode stands
behind all of them, and sees each operator as it runs with the types that it runs in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import nn

from aligner.adapter import Handle
from aligner.dtypes import DTYPES
from aligner_hooks.torch_.calls import is_in_callback
from aligner_hooks.torch_.ears import Ears
from aligner_hooks.torch_.operations import taken_from
from aligner_hooks.torch_.spec import read

Computed = Callable[[str, str], None]

# Operators that compute nothing: they cast, move values or fill with them.
_MOVES = frozenset(
    {
        *("_to_copy", "copy_", "copy", "clone", "detach", "contiguous", "lift_fresh", "empty", "empty_like", "zeros"),
        *("zeros_like", "ones", "ones_like", "full", "full_like", "fill", "fill_", "zero_", "arange", "cat", "stack"),
        *("index", "index_select", "index_put", "gather", "scatter", "embedding", "constant_pad_nd", "flip", "roll"),
        *("repeat", "masked_fill", "masked_fill_", "where", "tril", "triu", "eye", "reflection_pad2d", "_unsafe_view"),
        *("native_dropout", "bernoulli", "bernoulli_", "new_zeros", "new_ones", "new_empty", "new_full", "unfold"),
        *("scalar_tensor", "_reshape_copy", "replication_pad2d", "_pack_padded_sequence", "_local_scalar_dense"),
    }
)
# Kinds of layers whose operators autocast lowers, on every device.
_PRODUCTS = ("Conv", "Linear", "Bilinear", "MultiheadAttention", "LSTM", "GRU", "RNN")


def precision(module: nn.Module) -> Optional[tuple[str, str]]:
    """What autocast has a layer compute in whose operators it lowers; of others it depends on the device."""
    if not _is_any_enabled():  # asked of every layer that runs
        return None
    device = next((tensor.device.type for tensor in module.parameters()), "cpu")
    if not _is_enabled(device) or not read(module).kind.startswith(_PRODUCTS):
        return None
    return str(_dtype(device)).partition(".")[2], "autocast"


# Looked up once; an older torch is asked for the layer's device.
_is_any_enabled: Callable[[], bool] = getattr(getattr(torch, "_C", None), "_is_any_autocast_enabled", lambda: True)


def _is_enabled(device: str) -> bool:
    try:
        return bool(torch.is_autocast_enabled(device))
    except TypeError:  # before 2.4 it is about GPUs, and others have functions of their own
        asked = getattr(torch, f"is_autocast_{device}_enabled", None) if device != "cuda" else torch.is_autocast_enabled
        return bool(asked()) if asked is not None else False


def _dtype(device: str) -> torch.dtype:
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device)
    found: Any = getattr(torch, "get_autocast_gpu_dtype" if device == "cuda" else f"get_autocast_{device}_dtype")
    return found()


def listen(told: Computed) -> Handle:
    """Tell of this thread's operators from now on. torch before 1.13 tells of none."""
    return _EARS.listen(told)


def _put_on() -> Any:
    mode = _mode()
    if mode is not None:
        mode.__enter__()
    return mode


def _take_off(mode: Any) -> bool:
    """Before torch 2.0 only if nobody has put one upon it since."""
    from torch.utils import _python_dispatch

    if hasattr(_python_dispatch, "_push_mode"):
        return taken_from(mode, _python_dispatch, _python_dispatch._get_current_dispatch_mode_stack())
    if _python_dispatch._get_current_dispatch_mode() is not mode:
        return False
    mode.__exit__(None, None, None)
    return True


_EARS = Ears(_put_on, _take_off)


def _mode() -> Any:
    """A mode that tells all who listen and computes what would be computed anyway; None where torch has none."""
    try:
        from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode  # noqa: F401 - see _take_off
    except ImportError:
        return None

    class Telling(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """Else torch imports its compiler, for seconds, to keep it from compiling this class."""
            return "torch._dynamo" in sys.modules

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            output = function(*args, **(kwargs or {}))
            if _EARS.listeners and not is_in_callback():
                _tell(function, output)
            return output

    return Telling()


def _tell(function: Any, output: Any) -> None:
    packet = function.overloadpacket.__name__
    if packet in _MOVES or getattr(function, "is_view", False):
        return
    made = output[0] if isinstance(output, (tuple, list)) and output else output
    if not isinstance(made, torch.Tensor):
        return
    dtype = str(made.dtype).partition(".")[2]
    if dtype in DTYPES and DTYPES[dtype].eps is not None:
        _EARS.tell(packet.strip("_").lower(), dtype)
