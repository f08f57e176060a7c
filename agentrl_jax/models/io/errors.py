"""What is raised for every file that cannot be used."""


class WeightsError(ValueError):
    """A file of weights, or a configuration beside it, is broken or not supported.

    The message is one line: the file, what is wrong with it, and what to do.
    """
