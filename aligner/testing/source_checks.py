"""Checks of `computing` and `packages`: the user's own code is heard where it is written, and no number is changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import pytest

from aligner.adapter import Adapter, Handle
from aligner.source import ear
from aligner.source.listening import Place
from aligner.testing.nets import NETS
from aligner.testing.supplies import Supplies, same

Told = tuple[str, str, int]
"""Name, file and line."""


class _Telling:
    def __init__(self, told: list[Told]) -> None:
        self._told = told

    def begun(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: Place) -> None:
        self._told.append((name, *where[:2]))

    def handed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: Place, to: Optional[object]) -> None:
        """Not asked."""

    def kept(self, *_: object) -> None:
        """Into a list."""

    def entered(self, *_: object) -> None:
        """Into a function."""

    def came(self, output: object, where: Place, of: Optional[object]) -> None:
        """Not asked."""


class SourceChecks(Supplies):
    """computing, packages."""

    def listening(self, adapter: Adapter, net: Any, told: list[Told]) -> Handle:
        """Hear all code of a net's."""
        handle = ear.listen(adapter, net, _Telling(told))
        assert handle is not None, "a layer of the net's own has no source"
        return handle

    def test_the_users_code_is_heard_in_its_own_lines(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "nested"), self.x(adapter, "nested")
        told: list[Told] = []
        handle = self.listening(adapter, net, told)
        try:
            self.run(adapter, net, x)
        finally:
            handle.remove()
        assert "add" in [name for name, _, _ in told]
        for _, file, line in told:
            assert 0 < line <= len(Path(file).read_text(encoding="utf-8").splitlines())

    def test_what_the_framework_does_inside_its_layers_is_not_heard(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "norm"), self.x(adapter, "norm")
        layer: Any = dict(adapter.layers(net))["fc"]
        owner, method = adapter.computing(layer)
        assert str(getattr(owner, method).__module__).partition(".")[0] in adapter.packages
        told: list[Told] = []
        handle = self.listening(adapter, layer, told)
        try:
            with adapter.running(layer):
                layer(x)
        finally:
            handle.remove()
        assert told == []

    @pytest.mark.parametrize("name", sorted(set(NETS) - {"raising"}))
    def test_code_that_is_heard_computes_the_same(self, adapter: Adapter, name: str) -> None:
        net, x = self.net(adapter, name), self.x(adapter, name)
        wanted = self.run(adapter, net, x)
        handle = self.listening(adapter, net, [])
        try:
            found = self.run(adapter, net, self.x(adapter, name))
        finally:
            handle.remove()
        assert same(wanted, found)

    def test_nothing_is_left_in_the_net(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "raising"), self.x(adapter, "raising")
        before = [dict(vars(owner)) for owner, _ in (adapter.computing(layer) for _, layer in adapter.layers(net))]
        told: list[Told] = []
        handle = self.listening(adapter, net, told)
        try:
            with pytest.raises(ValueError, match="broken layer"):
                self.run(adapter, net, x)
        finally:
            handle.remove()
            handle.remove()
        after = [dict(vars(owner)) for owner, _ in (adapter.computing(layer) for _, layer in adapter.layers(net))]
        assert [sorted(one) for one in after] == [sorted(one) for one in before]
        told.clear()
        with pytest.raises(ValueError, match="broken layer"):
            self.run(adapter, net, x)
        assert told == []
