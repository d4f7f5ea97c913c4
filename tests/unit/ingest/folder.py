"""A folder as MindSpore writes it, for a small net: conv -> relu -> fc."""

from __future__ import annotations

import numpy as np

CONV, RELU, FC = "conv-Conv2d", "relu-ReLU", "fc-Dense"


class Folder:
    """Writes values under the names that MindSpore gives them; each is a microsecond later than the one before."""

    def __init__(self, path, graph="0"):
        self.path, self.graph, self.time = path, graph, 1795191669000000

    def value(self, kind, name, side, slot, array, iteration=0, form="DefaultFormat", dtype=None):
        place = self.path / "rank_0" / "Net" / self.graph / str(iteration)
        place.mkdir(parents=True, exist_ok=True)
        self.time += 1
        word = array.dtype.name.capitalize() if dtype is None else dtype
        file = place / f"{kind}.{name}.0.0.{self.time}.{side}.{slot}.{form}.{word}.npy"
        np.save(file, array)
        return file

    def operator(self, kind, scope, given, made, number=0, iteration=0):
        """One operator with what it gets and makes."""
        name = "_".join(["Default", *scope, f"{kind}-op{number}"])
        for slot, array in enumerate(given):
            self.value(kind, name, "input", slot, array, iteration)
        for slot, array in enumerate(made):
            self.value(kind, name, "output", slot, array, iteration)

    def parameter(self, name, array, iteration=0):
        return self.value("Parameter", name, "output", 0, array, iteration)

    def order(self, *names):
        """The execution order that MindSpore writes beside."""
        place = self.path / "rank_0" / "execution_order"
        place.mkdir(parents=True, exist_ok=True)
        lines = ["NodeExecutionOrder-FullNameWithScope", *names]
        (place / "ms_execution_order_graph_0.csv").write_text("\n".join(lines) + "\n")


def small(path, iterations=1):
    """The net's values by name, and its folder."""
    rng = np.random.default_rng(7)
    folder = Folder(path)
    values = {
        "conv.weight": rng.standard_normal((2, 1, 3, 3), np.float32),
        "fc.weight": rng.standard_normal((4, 32), np.float32),
        "fc.bias": np.zeros(4, np.float32),
    }
    for step in range(iterations):
        made = {
            "x": rng.standard_normal((3, 1, 4, 4), np.float32),
            "conv": rng.standard_normal((3, 2, 4, 4), np.float32),
            "fc": rng.standard_normal((3, 4), np.float32),
        }
        made["relu"] = np.maximum(made["conv"], 0)
        before = rng.standard_normal((3, 4), np.float32)
        folder.operator("Conv2D", [CONV], [made["x"], values["conv.weight"]], [made["conv"]], iteration=step)
        folder.operator("ReLU", [RELU], [made["conv"]], [made["relu"]], iteration=step)
        flat = made["relu"].reshape(3, 32)
        folder.operator("Reshape", [], [made["relu"]], [flat], iteration=step)
        folder.operator("MatMul", [FC], [flat, values["fc.weight"], np.array(False)], [before], iteration=step)
        folder.operator("BiasAdd", [FC], [before, values["fc.bias"]], [made["fc"]], iteration=step)
        for name, array in values.items():
            folder.parameter(name.replace(".", "_"), array, step)
        folder.parameter("args0", made["x"], step)
        values.update({f"{step}.{name}": array for name, array in made.items()})
    return folder, values
