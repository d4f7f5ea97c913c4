"""Packages that can be called: `aligner.compare(...)` although `aligner/compare/` is a folder.

A function of the same name in `aligner/__init__.py` would be replaced by the package as soon as anything
imports `aligner.compare.<module>`; giving the package itself a `__call__` works in every import order.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType


def make_callable(package: str, module: str, function: str) -> None:
    """Let calls of `package` go to `function` of `module`, which is imported on the first call."""

    class CallablePackage(ModuleType):
        def __call__(self, *args: object, **kwargs: object) -> object:
            return getattr(import_module(module), function)(*args, **kwargs)

    sys.modules[package].__class__ = CallablePackage
