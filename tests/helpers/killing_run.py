"""Runs `agentrl WORDS...` and kills the process with SIGKILL at the nth occurrence of a moment.

    killing_run.py MOMENT NTH WORDS...

MOMENT is the name of a program, which is then running; `publish`: a checkpoint is complete but still has its temporary
name; `write`: the folder of a checkpoint is about to be created; `digests`: its digests are about to be moved into
place; `remove`: an old checkpoint has been renamed for deletion; or `never`.
"""

import os
import signal
import sys
from pathlib import Path

# As many as the process of the tests has: since XLA of jaxlib 0.11 their number changes how results round.
os.environ["JAX_NUM_CPU_DEVICES"] = "8"

from agentrl_jax.cli import main as cli
from agentrl_jax.setup.programs import Programs


def run(moment: str, nth: int, words: list[str]) -> None:
    left = nth

    def now() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if moment == "digests":
        replace = os.replace

        def before_digests(path, target):
            if Path(target).name == "digests.json":
                now()
            return replace(path, target)

        os.replace = before_digests
    elif moment == "remove":
        rename = os.rename

        def after_rename(path, target, **options):
            rename(path, target, **options)
            if str(target).endswith(".removed"):
                now()

        os.rename = after_rename
    elif moment in ("publish", "write"):
        name = "rename" if moment == "publish" else "mkdir"
        original = getattr(os, name)

        def of_checkpoint(path, *arguments, **options):
            if Path(path).parent.name == "checkpoints" and "tmp" in Path(path).name:
                now()
            return original(path, *arguments, **options)

        setattr(os, name, of_checkpoint)
    else:
        keep = Programs._keep

        def kept(self, name, function, made_of, **options):
            program = keep(self, name, function, made_of, **options)

            def start(*arguments):
                results = program(*arguments)  # returns before the results are computed
                now()
                return results

            return start if name == moment else program

        Programs._keep = kept
    cli.main(words)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
