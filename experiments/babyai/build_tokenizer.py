"""Builds `tokenizer.json` beside this file: the small tokenizer with a token for each phrase of BabyAI.

    python experiments/babyai/build_tokenizer.py

An observation of BabyAI has about 400 characters, which are some 45 phrases, so a small decoder reads ten times less.
"""

from pathlib import Path

from agentrl_jax.text.build_small_tokenizer import SPECIALS, WORDS, build
from envs_jax.babyai import macros, text

words = dict.fromkeys([*WORDS, *text.PIECES, *macros.SIMPLE_NAMES, *macros.VERBS])
corpus = "\n".join(text.PIECES)
target = Path(__file__).with_name("tokenizer.json")
target.write_text(build(corpus, len(SPECIALS) + len(words) + 256 + 64, tuple(words)), encoding="utf-8")
print(f"{target}: {len(words)} words")
