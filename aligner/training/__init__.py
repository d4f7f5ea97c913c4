"""Why a training step goes wrong: what optimizers do by their settings, and what the numbers of a step tell.

In come the settings of both sides' optimizers and the arrays of one step; out go suspects, as of a layer. Read
`settings` first: most updates are wrong by a number that somebody has left out.
"""
