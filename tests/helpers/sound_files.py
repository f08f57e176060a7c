"""Files of tokenizers and levels to damage."""

import io

import numpy as np

from agentrl_jax.text import tokenizer
from envs_jax.frozen_lake import levels as maps
from envs_jax.sokoban import levels as xsb

XSB = "; c\n######\n#@$. #\n######\n\nLevel 1\n####\n#@ #\n#$ #\n#. #\n####\n"
MAPS = "SFFF\nFHFH\nFFFH\nHFFG\n\nSFFF\nFFFF\nFFFF\nFFFG\n"
TOKENIZER = tokenizer.small_files()["tokenizer.json"]


def uses_tokenizer(content):
    made = tokenizer.from_files({"tokenizer.json": content}, "a folder")
    made.decode(made.encode("Up <answer>é\n"))
    made.decode(range(made.vocab_size), skip_special=False)


def npy(pack):
    stream = io.BytesIO()
    np.save(stream, pack)
    return stream.getvalue()


LEVELS = {
    ("SimpleSokoban", "txt"): XSB.encode(),
    ("FrozenLake", "txt"): MAPS.encode(),
    ("SimpleSokoban", "npy"): npy(xsb.stack_levels(xsb.parse_xsb(XSB), 6, 6)),
    ("FrozenLake", "npy"): npy(maps.stack_levels(maps.parse_maps(MAPS))),
}
