"""Checks that a compiled program fits in free memory, before its first execution.

`config.checks` refuses sizes that no machine can hold. Whether this machine can hold a program is known once it is
compiled. Without this check, an accelerator's allocator would raise an error in the middle of a run, and on a CPU the
kernel would kill the process without a message.
"""

from collections.abc import Callable
from typing import Any

import jax
import psutil

from agentrl_jax.errors import UserError

LOWERS = {
    "update": "algo.minibatches (more of them), groups, rollout.group_size, prompt.max_turns or "
    "prompt.max_response_tokens",
    "imitation": "imitation.batch, prompt.max_turns or prompt.max_response_tokens",
    "data_steps": "the batch or the max_tokens of the stage",
    "evaluation": "train.validation_episodes, prompt.max_turns or prompt.max_response_tokens",
}
"""Settings that determine the memory of a program, besides the size of the model."""

OTHERS = "groups, rollout.group_size, rollout.slots, prompt.max_turns or prompt.max_response_tokens"


class Measured:
    """A jitted function that raises before its first execution if it would need more memory than is free.

    The check compiles the function as the call would, and the call reuses the result: nothing is compiled twice. There
    is no check while another function is being traced.
    """

    def __init__(self, name: str, program: Any, note: Callable[[str], None] = lambda line: None):
        """Compiles nothing yet; `name` is the name of the program in `Programs`, `note` shows that it is compiled."""
        self._name, self._program, self._note = name, program, note
        self.lower = program.lower

    def __call__(self, *arguments: Any) -> Any:
        """Calls the function; raises `UserError` if it needs more memory than is free on a device."""
        if not self._program._cache_size() and not any(
            isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments)
        ):
            self._note(f"compiling {self._name} (kept for later starts)")
            refuse_too_large(self._name, self.lower(*arguments).compile().memory_analysis())
        return self._program(*arguments)


def refuse_too_large(name: str, memory: Any) -> None:
    """Refuses a program whose results and temporaries need more memory than is free; arguments are in memory already.

    `memory` is the program's `memory_analysis()` for one device; None if the compiler gives none.

    Raises:
        UserError: the program is too large; the message names both sizes and the settings that determine them.
    """
    free = free_bytes()
    if memory is None or free is None:
        return
    needed = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    if needed > free:
        raise UserError(
            f"the program {name} needs {needed / 1e9:,.1f} GB in addition to its arguments of "
            f"{memory.argument_size_in_bytes / 1e9:,.1f} GB, expected at most the {free / 1e9:,.1f} GB that are free "
            f"on each device; lower {LOWERS.get(name, OTHERS)}, or use a smaller model or more devices",
            key=name,
            value=needed,
        )


def free_bytes() -> int | None:
    """Returns the free bytes of each local device; None if unknown.

    CPU devices share the memory of the machine. A container's memory limit below that of the machine is not detected.
    """
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return psutil.virtual_memory().available // jax.local_device_count()
    stats = device.memory_stats() or {}
    return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None
