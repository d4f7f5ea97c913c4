"""What all packages with torch's interface have alike: how their modules are called, walked, described and copied.

torch, OpenI's MindTorch and the mindtorch of mindnlp keep layers, settings and weights under the same names. What only
needs these names is written here once, for a package that is handed in (`nn`); nothing here imports one.

calls.py tells of modules' calls and steps in, layers.py walks a net, spec.py and settings.py read settings,
constructions.py and copies.py make layers like others. training.py tells of the updates that optimizers make.
"""
