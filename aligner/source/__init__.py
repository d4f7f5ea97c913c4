"""The user's own code, read and run again in a form that tells of each operation in it.

written       syntax trees of files, and of what is changed in them
functions     a function's definition, found and compiled again
rewriting     what is written in its place: each call, operator and slice goes through an ear
ear           runs them, and tells of those that work on tensors
constructing  what layers were built with, and building one again
sites         where in the code each was built
"""
