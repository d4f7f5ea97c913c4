"""How runs of the port's code end that are not run to their end."""


class InVainError(Exception):
    """What is run has shown already that it does not do."""


class EnoughError(InVainError):
    """All that was asked for has been seen."""


class FailedError(Exception):
    """The code raised, or was not run to its end because a kernel may die of it."""


class LostError(FailedError):
    """What the call was given cannot be built again, as objects of the user's."""
