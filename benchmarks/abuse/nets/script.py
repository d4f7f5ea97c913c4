"""A script that runs the net."""

from reference import build

net, x = build()
net(x)
