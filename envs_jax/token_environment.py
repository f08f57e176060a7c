"""`TokenEnvironment`: a compiled environment whose actions are commands with free text.

Shapes: `N` bytes of an argument.
"""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int32, UInt8

from envs_jax.environment import TextEnvironment
from envs_jax.errors import BadValue


@struct.dataclass
class Command:
    """One response, as an environment reads it.

    An environment never sees a tokenizer: the argument is the bytes of the tokens that were sampled for it, of which
    the first and the last may be parts of a token.
    """

    action: Int32[Array, ""]
    """Id of the command; -1 if the response has none."""
    text: UInt8[Array, " N"]
    """The first bytes of its argument, as sampled: they need not be UTF-8. Then 0."""
    length: Int32[Array, ""]
    """Bytes of the argument, also those beyond N."""


class TokenEnvironment(TextEnvironment):
    """A `TextEnvironment` that is stepped with a `Command` in place of an action id.

    `step_env(key, state, command, params)` is called once a turn, also for a response without a command, which counts
    in `time` like any other. Everything else is the contract of `TextEnvironment`; observations are pieces, which
    become tokens in the compiled step.

    Attributes:
        actions: names of the commands; index = action id.
        templates: text before and after the argument of each command. By default tags of its name.
        argument_bytes: N, most bytes of an argument that the environment reads.
    """

    templates: tuple[tuple[str, str], ...] = ()
    argument_bytes: int = 128

    @property
    def command_templates(self) -> tuple[tuple[str, str], ...]:
        """`templates`, or the tags of the names: `<search>` and `</search>`."""
        return self.templates or tuple((f"<{name}>", f"</{name}>") for name in self.actions)

    @property
    def null_action(self) -> Command:
        """A response without a command."""
        return self.command(-1, b"")

    def command(self, action: int, text: bytes) -> Command:
        """A command with an argument, on the host.

        Raises:
            ValueError: the id is no command's.
        """
        if not -1 <= action < len(self.actions):
            raise BadValue(
                f"command {action} of {self.name}; expected 0 to {len(self.actions) - 1}, or -1", "action", action
            )
        row = np.zeros(self.argument_bytes, np.uint8)
        shown = text[: self.argument_bytes]
        row[: len(shown)] = np.frombuffer(shown, np.uint8)
        return Command(action=jnp.int32(action), text=jnp.asarray(row), length=jnp.int32(len(text)))
