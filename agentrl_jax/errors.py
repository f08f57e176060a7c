"""The one exception whose message is written for the person at the terminal."""


class UserError(Exception):
    """Something the user can put right.

    The message is one line and says what was wrong, what was expected and what to do. The command line prints it
    without a traceback and ends with exit code 2.
    """
