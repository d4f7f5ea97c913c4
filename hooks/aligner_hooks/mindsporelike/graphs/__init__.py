"""Observing what MindSpore compiles: nets of its own, and of OpenI's MindTorch, whose modules are its cells.

compiled.py  calls the observers of each cell that runs inside a compiled graph
graph.py     compiles one graph with operators in it that tell of its values, as many as it can be compiled with
taps.py      what is compiled along with an observed cell
forms.py     how its values are nested, and their arrival one by one
native.py    the operator that tells: it is shown the graph's own memory
"""
