"""Effect of encoding observations piece by piece on a pretrained model, compared with encoding whole texts.

    python benchmarks/tokenization.py smollm2-135m
    python benchmarks/tokenization.py --run runs/mine          # the policy and the first task of a run

A compiled environment describes its state by pieces, and each piece is encoded separately. Three encodings of the same
text are compared: "pieces"; "observation", where the observation is encoded as one text, as for host environments; and
"canonical", where all text between two special tokens is encoded at once, as in the training of the model.

1. Tokens of the observation and of the whole prompt, on states of random play, one per level.
2. Nats (log-probability) of the observation after the same prompt, and of the same optimal response after each prompt.
3. Success on the same levels, with the same environment noise and sampling keys, by pieces and canonical
   (`prompt.encoder`).

Differences are canonical minus pieces, with 95 % intervals of the paired differences (`evaluate.statistics`).
"""

import argparse
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from situations import Situation, canonical, situations

from agentrl_jax.config import Config, decode
from agentrl_jax.evaluate.eval_set import EvalSet
from agentrl_jax.evaluate.statistics import mean_interval, paired_interval, success_interval
from agentrl_jax.models import actor_critic
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.envs.level_splits import level_splits
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.setup import build, build_inputs, build_model
from agentrl_jax.setup.policy import load_policy
from agentrl_jax.setup.programs import Programs
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax.registry import spec
from envs_jax.splits import Split

CASES = {
    "Bandit": ("Bandit", "BanditTest", "BanditPhoenix"),
    "FrozenLake": ("FrozenLake",),
    "SimpleSokoban": ("SimpleSokoban",),
}
"""Tags of environments by name; a bandit has only two states, so three pairs of arms are combined."""

STYLES = ("compact", "ragen")
ROWS = 16
"""Rows that are scored in one batch."""

LIKELIHOOD = (
    "case",
    "states",
    "tokens of an observation, pieces / text",
    "of a prompt, pieces / canonical",
    "equal observations / prompts",
    "nats of an observation, pieces",
    "text - pieces",
    "nats of the response, pieces",
    "observation as text - pieces",
    "canonical - pieces",
)
SUCCESS = ("case", "levels", "pieces, %", "canonical, %", "difference, points", "turns in format", "levels that differ")


class Measured(NamedTuple):
    """Measurements of n situations; the module names the three encodings of a prompt.

    Attributes:
        observation_tokens: i64[n, 2] tokens of the observation, by pieces and as one text.
        prompt_tokens: i64[n, 3] tokens of the prompt, by encoding.
        observation_nats: f64[n, 2] log-probability of the observation, by pieces and as one text, both after the head
            by pieces.
        response_nats: f64[n, 3] log-probability of the response, by encoding of the prompt.
        same: bool[n, 2] whether the pieces give the same tokens as the text, for the observation and the whole prompt.
    """

    observation_tokens: np.ndarray
    prompt_tokens: np.ndarray
    observation_nats: np.ndarray
    response_nats: np.ndarray
    same: np.ndarray


def measure(params: dict[str, Any], model: ActorCritic, tokenizer: Tokenizer, found: Sequence[Situation]) -> Measured:
    """Encodes the prompts in three ways and scores them."""
    rows: list[tuple[list[int], list[tuple[int, int]]]] = []
    prompts = []
    for s in found:
        by_pieces, one_text = s.head + s.observation + s.rest, s.head + s.whole + s.rest
        prompts.append((by_pieces, one_text, canonical(tokenizer, by_pieces)))
        first = len(s.head)
        observed = ([(first, first + len(s.observation))], [(first, first + len(s.whole))], [])
        for prompt, spans in zip(prompts[-1], observed):
            rows.append((prompt + s.response, [*spans, (len(prompt), len(prompt) + len(s.response))]))
    nats = list(score(params, model, rows))
    return Measured(
        observation_tokens=np.array([(len(s.observation), len(s.whole)) for s in found]),
        prompt_tokens=np.array([[len(prompt) for prompt in three] for three in prompts]),
        observation_nats=np.array([(a[0], b[0]) for a, b in zip(nats[::3], nats[1::3])]),
        response_nats=np.array([[sums[-1] for sums in three] for three in zip(nats[::3], nats[1::3], nats[2::3])]),
        same=np.array([(s.observation == s.whole, three[0] == three[2]) for s, three in zip(found, prompts)]),
    )


def score(
    params: dict[str, Any], model: ActorCritic, rows: Sequence[tuple[list[int], list[tuple[int, int]]]]
) -> Iterator[list[float]]:
    """Yields, for each row of tokens, the summed log-probabilities of its spans (from, to); all rows use one shape."""
    length = max(len(tokens) for tokens, _ in rows)
    slots = max(sum(end - begin for begin, end in spans) for _, spans in rows)
    columns = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*(tokens[:-1] for tokens, _ in rows)))
    model = dataclasses.replace(model, shared_prefix_len=len(list(columns)))
    for first in range(0, len(rows), ROWS):
        part = rows[first : first + ROWS]
        tokens, position = np.zeros((ROWS, length), np.int32), np.ones((ROWS, slots), np.int32)
        for index, (ids, spans) in enumerate(part):
            tokens[index, : len(ids)] = ids
            wanted = [place for span in spans for place in range(*span)]
            position[index, : len(wanted)] = wanted
        logprobs = np.asarray(_logprobs(params, model, tokens, position, np.ones(ROWS, np.float32)), np.float64)
        for row, (_, spans) in zip(logprobs, part):
            ends = np.cumsum([end - begin for begin, end in spans])
            yield [float(x.sum()) for x in np.split(row, ends)[:-1]]


_logprobs = jax.jit(actor_critic.logprobs, static_argnums=1)


def play(
    config: Config, params: dict[str, Any], model: ActorCritic, tokenizer: Tokenizer, episodes: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields (sampled or greedy, success bool[n, 2], share of turns in format f64[n, 2]), by pieces and canonical."""
    engine = build_inputs.engine_config(config, tokenizer, group_size=1, slots=0)
    programs = Programs(make_mesh(1))
    eval_sets = []
    for encoder in ("pieces", "canonical"):
        prompt = config.prompt.replace(encoder=encoder)
        batched_env = build.build_compiled_env(config.replace(prompt=prompt), tokenizer)
        program = programs.rollout(encoder, model, batched_env, engine)
        levels, seed = level_splits(batched_env).tasks[0], config.evaluation.seed
        settings = build_inputs.rollout_settings(config, batched_env, 1, 0.0)
        eval_sets.append(
            EvalSet(
                program=program,
                chunk=min(episodes, 64),
                batched_env=batched_env,
                settings=settings,
                prompt=prompt,
                task=0,
                levels=levels,
                split=Split.TEST,
                seed=seed,
            )
        )
    for how, temperature in (("sampled", 1.0), ("greedy", 0.0)):
        both = [eval_set.play(params, eval_set.number(episodes), temperature) for eval_set in eval_sets]
        if any(trajectory.overflow.any() for trajectory in both):
            raise RuntimeError("a message has more tokens than by pieces in the worst case; raise max_message_tokens")
        formatted = [1 - x.turn.format_error.sum(axis=1) / np.maximum(x.num_turns, 1) for x in both]
        yield how, np.stack([x.success for x in both], 1), np.stack(formatted, 1)


def cases(model: str, styles: Sequence[str]) -> Iterator[tuple[str, Config, tuple[str, ...]]]:
    """Yields name, configuration and tags of each case that a pretrained model is measured on."""
    for style, (name, tags) in itertools.product(styles, CASES.items()):
        actions = spec(tags[0]).max_actions
        data = {
            "tasks": [{"env": tag, "groups": 1} for tag in tags],
            "prompt": {
                "style": style,
                "max_turns": min(actions, 2),
                "max_actions_per_turn": min(actions, 3),
                "max_actions": actions,
                "max_response_tokens": 16,
            },
            "model": {"pretrained": model},
            "rollout": {"context": "single_turn"},
            "algo": {"preset": "starpo_grpo"},
        }
        yield f"{name}, {style}", decode(data), tags


def shown(interval: dict[str, float | int], scale: float = 1.0, digits: int = 2) -> str:
    """Formats a mean with its interval."""
    mean, low, high = (interval[name] * scale for name in ("mean", "low", "high"))
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def print_row(*cells: object) -> None:
    """Prints a row of a Markdown table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def report_likelihood(name: str, m: Measured) -> None:
    by_pieces, one_text, whole = m.response_nats.T
    cells = [
        name,
        len(m.same),
        *(f"{a:.1f} / {b:.1f}" for a, b in (m.observation_tokens.mean(0), m.prompt_tokens.mean(0)[[0, 2]])),
        " / ".join(f"{share:.0%}" for share in m.same.mean(0)),
        f"{m.observation_nats[:, 0].mean():.1f}",
        shown(paired_interval(m.observation_nats[:, 1], m.observation_nats[:, 0]), digits=1),
        shown(mean_interval(by_pieces)),
        shown(paired_interval(one_text, by_pieces)),
        shown(paired_interval(whole, by_pieces)),
    ]
    print_row(*cells)


def report_play(name: str, success: np.ndarray, formatted: np.ndarray) -> None:
    cells = [
        name,
        len(success),
        *(shown(success_interval(x), 100, 1) for x in success.T),
        shown(paired_interval(success[:, 1], success[:, 0]), 100, 1),
        " / ".join(f"{share:.0%}" for share in formatted.mean(0)),
        f"{np.mean(success[:, 0] != success[:, 1]):.0%}",
    ]
    print_row(*cells)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", nargs="?", default="smollm2-135m", help="as model.pretrained")
    options.add_argument("--episodes", type=int, default=64, help="states of parts 1 and 2, levels of part 3")
    options.add_argument("--run", help="folder of a run from a pretrained model; its policy is measured instead")
    options.add_argument("--styles", nargs="+", choices=STYLES, default=STYLES, help="of prompts; a run has its own")
    options.add_argument("--parts", choices=("all", "likelihood", "success"), default="all")
    chosen = options.parse_args()

    if chosen.run:
        config = read_config(chosen.run)
        policy = load_policy(chosen.run, config)
        tokenizer, model, params = policy.tokenizer, policy.model, policy.params
        # The critic is not used here.
        model = dataclasses.replace(model, critic="none")
        wanted = [(f"{config.tasks[0].env}, {config.prompt.style}", config, (config.tasks[0].env,))]
    else:
        wanted = list(cases(chosen.model, chosen.styles))
        config = wanted[0][1]
        pretrained = build_model.load_model(config.model)
        tokenizer = build_model.load_tokenizer(config.model, pretrained)
        model = build_model.build_model(config, tokenizer, pretrained)
        params = actor_critic.from_decoder(jax.random.key(0), pretrained.params, model)

    if chosen.parts != "success":
        print_row(*LIKELIHOOD)
        print_row(*["---"] * len(LIKELIHOOD))
        for name, config, tags in wanted:
            tasks = build.build_compiled_env(config, tokenizer).tasks[: len(tags)]
            each, key = -(-chosen.episodes // len(tasks)), jax.random.key(0)
            found = [s for task in tasks for s in situations(task, tokenizer, key, each, config.prompt)]
            report_likelihood(name, measure(params, model, tokenizer, found))
    if chosen.parts != "likelihood":
        print_row(*SUCCESS)
        print_row(*["---"] * len(SUCCESS))
        for name, config, _ in wanted:
            config = config.replace(tasks=config.tasks[:1])
            for how, success, formatted in play(config, params, model, tokenizer, chosen.episodes):
                report_play(f"{name}, {how}", success, formatted)


if __name__ == "__main__":
    main()
