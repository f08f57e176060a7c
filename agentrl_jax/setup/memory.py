"""Whether a compiled program fits the memory that is free, asked before its first execution.

Limits of sizes (`config.sizes`) refuse what no machine holds. What this one does not hold is known when a
program has been compiled: without the question an accelerator ends a run by an error of its allocator, and on a CPU the
kernel kills the process without a word.
"""

from typing import Any

import jax
import psutil

from agentrl_jax.errors import UserError

LOWERS = {
    "update": "algo.minibatches (more of them), groups, rollout.group_size, prompt.max_turns or "
    "prompt.max_response_tokens",
    "imitation": "imitation.batch, prompt.max_turns or prompt.max_response_tokens",
    "evaluation": "train.validation_episodes, prompt.max_turns or prompt.max_response_tokens",
}
"""Settings that decide how much a program takes, beside the size of the model."""

OTHERS = "groups, rollout.group_size, rollout.slots, prompt.max_turns or prompt.max_response_tokens"


class Measured:
    """A jitted function that is refused before its first execution where that would need more memory than is free.

    It is lowered and compiled as the call would have done, whose work this then is: nothing is compiled twice. Inside
    another function that is being traced nothing is asked.
    """

    def __init__(self, name: str, program: Any):
        """Compiles nothing yet; `name` is that of the program in `Programs`."""
        self._name, self._program = name, program
        self.lower = program.lower

    def __call__(self, *arguments: Any) -> Any:
        """What the function returns.

        Raises:
            UserError: its temporaries and results are larger than the free memory of a device.
        """
        if not self._program._cache_size() and not any(
            isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments)
        ):
            refuse_too_large(self._name, self.lower(*arguments).compile().memory_analysis())
        return self._program(*arguments)


def refuse_too_large(name: str, memory: Any) -> None:
    """Refuses a program whose execution needs more than is free.

    Args:
        name: of the program.
        memory: its `memory_analysis()`, of one device; None where the compiler makes none. What the program is given is
            in memory already.

    Raises:
        UserError: names both sizes and the settings that decide.
    """
    free = free_bytes()
    if memory is None or free is None:
        return
    needed = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    if needed > free:
        raise UserError(
            f"the program {name} needs {needed / 1e9:,.1f} GB beside its arguments of "
            f"{memory.argument_size_in_bytes / 1e9:,.1f} GB, expected at most the {free / 1e9:,.1f} GB that are free "
            f"on each device; lower {LOWERS.get(name, OTHERS)}, or use a smaller model or more devices"
        )


def free_bytes() -> int | None:
    """Bytes that are free on each local device; None where that is not known.

    Devices of a CPU share its memory. A limit of a container that is below the machine's memory is not seen.
    """
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return psutil.virtual_memory().available // jax.local_device_count()
    stats = device.memory_stats() or {}
    return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None
