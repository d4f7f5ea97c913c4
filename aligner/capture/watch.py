"""What the script door watches for: the first model that runs, found when its framework is imported."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Optional, cast

from aligner.errors import AdapterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aligner.adapter import Adapter, Compiles, Handle, Trains
    from aligner.capture.progress import Progress
    from aligner.capture.session import Capture, Options

    Choose = Callable[[Adapter, Mapping[str, object]], Mapping[str, object]]
    Make = Callable[[Adapter, object, str, Options, Progress], Capture]


class Watch:
    """Captures one model of a running script.

    The model is the first outermost layer call whose class is `wanted`, or without `wanted` the first that has
    parameters (so a loss is passed by). Nothing here may disturb the script: what goes wrong is kept in `failure`.
    """

    def __init__(
        self,
        path: str,
        options: Callable[[], Options],
        wanted: Optional[str],
        progress: Progress,
        make: Optional[Make] = None,
        eager: bool = False,
        stops: bool = False,
        chosen: Choose = lambda adapter, nets: nets if len(nets) > 1 else {},
    ) -> None:
        """`make` makes the capture of a model that runs; without, it is one of its own. With `eager` the script runs
        eagerly whatever it asks for, to the end of the capture; with `stops` it ends when its model is called behind
        the last step that is wanted. Of nets that are trained beside each other those that are `chosen`, under these
        names, are captured together; if there are none, the model alone is."""
        self.capture: Optional[Capture] = None
        self.failure: Optional[Exception] = None
        self.raised: Optional[BaseException] = None
        """What the script has ended with."""
        self.captured = ""
        self.ran: dict[str, tuple[Adapter, object]] = {}
        self.bare: list[str] = []
        """What ran and has no parameter."""
        self.path = path
        self.unobserved = 0
        self._options = options
        self._wanted = wanted
        self._progress = progress
        self._make = make
        self._eager = eager
        self._stops = stops
        self._chosen = chosen
        self._models: list[object] = []
        """What is captured: the model, or nets that are captured together."""
        self._unloaded: Optional[AdapterError] = None
        self._handles: list[Handle] = []
        self._modes: list[Handle] = []

    def on_import(self, framework: str) -> None:
        """A framework was imported: wait for a model of it to run."""
        from aligner import registry

        try:
            adapter = registry.load(framework)
            if self._eager and hasattr(adapter, "eagerly"):
                self._modes.append(cast("Compiles", adapter).eagerly())
            self._handles.append(adapter.watch_roots(lambda model: self._guarded(adapter, model)))
        except AdapterError as error:  # told if no other framework's model runs: MindTorch brings a MindSpore with it
            self._unloaded = self._unloaded or error
        except Exception as error:  # it would come out of the script's import
            self.failure = self.failure or error

    def _guarded(self, adapter: Adapter, model: object) -> None:
        self._kept(lambda: self._on_root(adapter, model))  # the script goes on; told when it has ended

    def _on_root(self, adapter: Adapter, model: object) -> None:
        if any(model is one for one in self._models):
            finished = self.capture is not None and self.capture.finished
            self.unobserved += finished
            if finished and self._stops:
                raise SystemExit(0)
            return
        if not adapter.is_model(model):
            return
        name = adapter.type_name(model).rpartition(".")[2]  # mixed precision puts a class "NetOpt" in Net's place
        names = (name, type(model).__name__)
        if self._wanted not in names and next(iter(adapter.parameters(model)), None) is None:
            if name not in self.bare:
                self.bare.append(name)
            return
        self.ran.setdefault(name, (adapter, model))
        if self.capture is not None or self.failure is not None or self._wanted not in (None, *names):
            return
        from aligner.capture.session import Capture

        options = self._options()
        self._check_training(adapter, options.gradients)
        self._models, self.captured = [model], name
        if options.gradients and self._wanted is None:
            model = self._together(adapter, model, options)
        self.capture = (self._make or Capture)(adapter, model, self.path, options, self._progress)
        self.capture.__enter__()

    def _together(self, adapter: Adapter, model: object, options: Options) -> object:
        """The model, or a net of it and those that are trained beside it."""
        from aligner.capture.beside import beside, named, told

        nets = self._chosen(adapter, named(adapter, [model, *beside(adapter, model)]))
        if not nets:
            return model
        self._models, self.captured = [*nets.values()], ", ".join(nets)
        options.header = {**options.header, **told(nets)}
        whole = cast("Trains", adapter).together(nets)
        self._models.append(whole)
        return whole

    def _check_training(self, adapter: Adapter, wanted: bool) -> None:
        """End the script before it trains, if that is wanted and its framework does not tell of it.

        Raises:
            SystemExit: so it is; `failure` says what.
        """
        from aligner.capture.steps import check_training

        self._kept(lambda: check_training(adapter, wanted))
        if self.failure is not None:
            raise SystemExit(0)

    @property
    def others(self) -> list[str]:
        """Nets that ran and are neither captured, nor a part of what is, nor around it."""
        captured = {id(one) for one in self._models}
        found = {name: {id(layer) for _, layer in adapter.layers(model)} for name, (adapter, model) in self.ran.items()}
        inside = self._inside()
        apart = (name for name, (_, model) in self.ran.items() if id(model) not in inside)
        return [name for name in apart if not found[name] & captured]

    def _inside(self) -> set[int]:
        """The layers of what is captured."""
        adapters = {id(adapter): adapter for adapter, _ in self.ran.values()}
        adapter = next(one for one in adapters.values() if one.is_model(self._models[0]))
        return {id(layer) for model in self._models for _, layer in adapter.layers(model)}

    def close(self) -> None:
        """The script has ended; `failure` tells what went wrong with the capture."""
        for handle in self._handles:
            self._kept(handle.remove)
        if self.capture is None:
            self.failure = self.failure or self._unloaded
        else:
            self.capture.others = self.others
            self._kept(partial(self.capture.close, error=self.raised))
        for handle in self._modes:
            self._kept(handle.remove)

    def _kept(self, action: Callable[[], object]) -> None:
        """Do it; what goes wrong must not stop the rest, nor hide what the script has raised."""
        try:
            action()
        except Exception as error:
            self.failure = self.failure or error
