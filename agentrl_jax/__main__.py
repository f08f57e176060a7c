"""The command `agentrl`, also as `python -m agentrl_jax`."""

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
    main()
