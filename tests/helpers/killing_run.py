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

    def watch(name, dies_before=lambda *paths: False, dies_after=lambda *paths: False) -> None:
        """Replaces a function of `os` by one that counts calls with such paths."""
        original = getattr(os, name)

        def watched(*paths, **options):
            if dies_before(*paths):
                now()
            found = original(*paths, **options)
            if dies_after(*paths):
                now()
            return found

        setattr(os, name, watched)

    def of_checkpoint(path, *_):
        return Path(path).parent.name == "checkpoints" and "tmp" in Path(path).name

    if moment == "digests":
        watch("replace", dies_before=lambda path, target: Path(target).name == "digests.json")
    elif moment == "remove":
        watch("rename", dies_after=lambda path, target: str(target).endswith(".removed"))
    elif moment in ("publish", "write"):
        watch("rename" if moment == "publish" else "mkdir", dies_before=of_checkpoint)
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
