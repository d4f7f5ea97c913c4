"""Edits of the port's own code, found where it leaves the reference's, and proved by running the code with them.

events    what both sides' code did, in the same words: operations, calls of layers, values by number
theirs    the reference's events, out of its dump
heard     the port's events, of a run of one layer's code
ground    what a call is run on: the reference's values
running   one call of a layer, run again from edited source, the layers in it handing on the reference's values
texts     a value of the reference in the port's words
search    edits that may put a wrong value right, the smallest first
grafting  what the reference does in several statements, where one expression is too long
ranking   what an edit would make of the rest, before it is run
edits     a change of the source, and how much it changes
mend      the edits that are proved
constants constants of a file, written otherwise
passed    an argument of the user's layers, changed where it is given
rounding  what code makes of the rounding of its own operations
settings  the line that builds a layer, with what a trial has proved of its settings
"""
