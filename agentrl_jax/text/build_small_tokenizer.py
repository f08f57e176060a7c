"""Trains the small tokenizer that the package ships: `python -m agentrl_jax.text.build_small_tokenizer`.

Byte-level BPE with at most 512 tokens. Special tokens come first, then words with their own token (response tags,
separator, action names, the one grid symbol outside ASCII), then the 256 bytes, then merges learned from the short
corpus below. The corpus has no boards, so no merge joins two grid symbols.
"""

import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentrl_jax.text.tokenizer import byte_alphabet

VOCAB_SIZE = 512
SPECIALS = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
WORDS = ("<think>", "</think>", "<answer>", "</answer>", "||", "Up", "Down", "Left", "Right", "√")
CORPUS = """
You are a helpful assistant who plays games of planning and answers in the asked format.
You are the player on a board. Push every box onto a target. You can push a box but you cannot pull it.
A box does not move when a wall or another box is behind it. You cannot walk through walls.
Walk over the frozen lake from the start to the goal. Do not fall into a hole. The ice is slippery.
You may slide to the left or to the right of the way that you wanted to go.
There are two arms. Each arm pays points. The name of an arm tells how it pays. Choose the arm that pays more.
The arms are called Engineer and Teacher, Trader and Librarian, Phoenix and Dragon.
The meaning of each symbol in the state: wall, empty floor, target, box, box on target, player, player on target.
The meaning of each symbol: player, frozen, hole, goal, player in hole, player on goal.
Your available actions are: Up, Down, Left, Right. Left, Down, Right, Up.
You can make up to 10 actions, separated by the action separator. At most 5 actions in one turn.
Turn 1: State: Actions left: Reward: the reward of the last turn was 0.0 points. You have 10 actions left.
Always answer with your thoughts and then your answer, and nothing else, in at most 100 words.
The state has rows and columns. Player at (row, column). Box at (row, column). Target at (row, column). Goal at.
First think about where the box is and where it should go. The box is above the target, so I have to push it down.
The player is below the box. Go around the box to the other side. Move one step to the left, then push up.
The target is to the right of the box. I must stand to the left of the box and push it to the right.
Now the box is on the target and the task is solved. That was a mistake, because the box is stuck in the corner.
The goal is two rows down and one column to the right. There is a hole between the player and the goal.
Output format: the answer block holds the actions. Extra text is not allowed. Strictly follow this format.
left right up down box target player wall floor goal hole frozen state action answer think turn reward format
"""


def build(corpus: str = CORPUS, size: int = VOCAB_SIZE, words: Sequence[str] = WORDS) -> str:
    """Returns the text of a `tokenizer.json` with merges learned from `corpus`; the same on every run.

    It has at most `size` tokens, including special ones, `words` (always one token each) and the 256 bytes.
    """
    alphabet = sorted(byte_alphabet().values())
    trainee = Tokenizer(models.BPE())
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    trainee.pre_tokenizer = splitter
    merges_wanted = size - len(SPECIALS) - len(words) - len(alphabet)
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + merges_wanted, initial_alphabet=alphabet, min_frequency=2, show_progress=False
    )
    # Encoding extracts the words before it merges, so the merges are trained without them.
    trainee.train_from_iterator(re.split("|".join(map(re.escape, (*words, "\n"))), corpus.strip()), trainer)
    merges = [tuple(pair) for pair in json.loads(trainee.to_str())["model"]["merges"]]
    names = [*SPECIALS, *words, *alphabet, *("".join(pair) for pair in merges)]
    small = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges))
    small.pre_tokenizer = splitter
    small.decoder = decoders.ByteLevel()
    small.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    small.add_tokens([AddedToken(name, special=False, normalized=False) for name in words])
    return json.dumps(json.loads(small.to_str()), ensure_ascii=False, indent=0) + "\n"


def main() -> None:
    """Rewrites the packaged file."""
    target = Path(str(resources.files("agentrl_jax.text"))) / "data" / "small_tokenizer.json"
    target.write_text(build(), encoding="utf-8")
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
