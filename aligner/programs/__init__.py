"""Python that is made of what a dump holds: how a layer is built, and a wrong layer or operation by itself.

In comes plain data (a layer's spec, an operation, values); out go text and its arrays. Read `building` first: it is the
one thing that such text takes from a dump as code. `speech` words it for a framework, `repro` writes the whole program.
"""
