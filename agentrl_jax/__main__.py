"""The command `agentrl`, also as `python -m agentrl_jax`."""

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Imports the commands, which takes a second, and runs the one that is given."""
    try:
        from agentrl_jax.cli.main import main as run
    except KeyboardInterrupt:
        print("agentrl: stopped", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    # `python -m` finds modules of the working directory first; a command has to name them, see `cli.main`.
    if sys.path[0] == os.getcwd() and not os.path.isdir("agentrl_jax"):
        del sys.path[0]
    main()
