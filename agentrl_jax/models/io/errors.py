"""The error for every file that cannot be used."""


class WeightsError(ValueError):
    """A file of weights, or its configuration, is damaged or not supported.

    The message is one line: the file, what is wrong with it, and what to do.
    """
