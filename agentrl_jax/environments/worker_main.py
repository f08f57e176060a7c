"""The process of environments in Python: `python -P -m agentrl_jax.environments.worker_main SYS_PATH`.

Reads one call per line from descriptor 0 and answers with one line on descriptor 1, both JSON. Environments run on the
main thread, where they may use signals. What they print goes to descriptor 2, a log.
"""

import dataclasses
import json
import os
import sys
from typing import Any

from agentrl_jax.environments import loading, values
from agentrl_jax.environments.protocol import Traits, traits_of
from agentrl_jax.errors import MAX_FOREIGN, shortened


def main() -> None:
    """Serves calls until the other side closes its end."""
    # Environments may read and print: the calls get descriptors of their own before anything is imported.
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    sys.path += [folder for folder in json.loads(sys.argv[1]) if folder not in sys.path]
    served = _Served()
    for line in iter(calls.readline, b""):
        try:
            answer = {"value": served.answer(json.loads(line))}
        except values.WrongReturn as error:
            answer = {"failed": str(error)}
        except BaseException as error:
            answer = {"failed": f"{served.where}: {type(error).__name__}: {shortened(error, MAX_FOREIGN)}"}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


class _Served:
    """The environments of this process, by number."""

    def __init__(self) -> None:
        self.where = ""
        self._kind: Any = None
        self._traits = Traits()
        self._made: dict[int, Any] = {}

    def answer(self, call: dict[str, Any]) -> Any:
        """The result of a call: its `do`, the number of the environment, and the arguments."""
        do, number, arguments = call["do"], call["env"], call["arguments"]
        if do == "import":
            self.where = f"import of {arguments[0]}"
            self._kind = loading.load(arguments[0])
            self._traits = traits_of(self._kind)
            return dataclasses.asdict(self._traits)
        self.where = f"{self._kind.__qualname__}.{do}"
        if do == "__init__":
            self._made[number] = self._kind(**arguments[0])
            return None
        if do == "close":
            return self._made.pop(number).close()
        found = getattr(self._made[number], do)(*arguments)
        if do == "step":
            return dataclasses.asdict(values.step(found, self.where, self._traits.info_keys))
        if do == "plan":
            return values.actions(found, self.where)
        return values.text(found, self.where)


if __name__ == "__main__":
    main()
