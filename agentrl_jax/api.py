"""Python use of the package: what `agentrl train` and `agentrl eval` call, and rollouts of a trained policy.

    from agentrl_jax.api import evaluate, load_config, load_policy, rollout, train

The functions are here and not in `agentrl_jax` itself, whose folders have the names `train`, `evaluate` and `rollout`.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_jax.config import Config, load_config
from agentrl_jax.config.fields import LARGEST
from agentrl_jax.errors import BadValue, UserError, refusals
from agentrl_jax.evaluate.eval_set import EvalSet
from agentrl_jax.evaluate.eval_set import evaluate_run as evaluate
from agentrl_jax.model_server.sampler import Sampler, SampleRequest
from agentrl_jax.model_server.served_model import ServedModel, make_sampler, served_policy
from agentrl_jax.parallel import hosts
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.envs.level_splits import level_splits
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.rollout.transcript import transcripts
from agentrl_jax.runs.listing import as_records, find_runs
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.setup import build, build_inputs
from agentrl_jax.setup import policy as run_policy
from agentrl_jax.setup.policy import RunPolicy
from agentrl_jax.setup.programs import Programs
from agentrl_jax.terminal import to_stderr
from agentrl_jax.train.run import train
from envs_jax.splits import SHARES, Split

if TYPE_CHECKING:
    import pandas

MAX_CONVERSATION = 4096
"""Most tokens of a conversation of `Policy.act`, or as many as the model has positions."""

__all__ = ["Policy", "evaluate", "load_config", "load_policy", "rollout", "runs", "train"]


@dataclasses.dataclass(frozen=True)
class Policy(RunPolicy):
    """The policy of a run, with the folder of the run and the configuration that it was trained with."""

    run: Path
    config: Config

    def transcripts(self, trajectory: Trajectory) -> list[dict[str, Any]]:
        """Returns a trajectory that this policy has played as readable text.

        Each episode has task, group, member, prompt, return, success and `turns`; each turn has observation, response,
        actions, reward and format_error.
        """
        names = tuple(task.label for task in self.config.tasks)
        return transcripts(hosts.fetch(trajectory), self.tokenizer, names)

    def act(
        self, messages: str | Sequence[Mapping[str, str]], *, temperature: float = 0.0, seed: int = 0, tokens: int = 0
    ) -> str:
        """Returns the policy's response to a conversation, as `agentrl serve-model` answers it, on the first device.

        `messages` is a text of the user, or the messages so far, each with `role` (system, user or assistant) and
        `content`, the last one of the user: what the environment shows, in the form of the run's prompts. At
        temperature 0 the response is the most likely one. It has at most `tokens` tokens; 0 for as many as in training.

        Raises:
            UserError: the conversation is too long or its roles are out of order, or an argument is out of range.
        """
        with refusals():
            turns = _turns(messages)
            if not 0 <= temperature <= LARGEST:
                raise BadValue.of("temperature", temperature, "expected 0 or more")
            model, sampler = self._served
            prompt, most = model.prompt_ids(turns), tokens or self.config.prompt.max_response_tokens
            if not 0 < most <= sampler.max_tokens:
                raise BadValue.of("tokens", most, f"expected 1 to {sampler.max_tokens}")
            if len(prompt) + most > sampler.context:
                why = f"and a response of {most} do not fit into {sampler.context} tokens; leave out earlier messages"
                raise BadValue.of("messages", len(prompt), f"whose tokens {why}")
        to_answer = model.grammar is not None
        (found,) = sampler([SampleRequest(tuple(prompt), most, temperature, seed, to_answer=to_answer)])
        return model.opening + self.tokenizer.decode(found.tokens)

    @functools.cached_property
    def _served(self) -> tuple[ServedModel, Sampler]:
        model = served_policy(self, self.config, self.run, name=self.run.name)
        return model, make_sampler(model, context=MAX_CONVERSATION, max_tokens=MAX_CONVERSATION, max_batch=1)


def _turns(messages: str | Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    if isinstance(messages, str):
        return [("user", messages)]
    for number, message in enumerate(messages):
        if message.get("role") not in ("system", "user", "assistant") or not isinstance(message.get("content"), str):
            why = "expected role (system, user or assistant) and content, a text"
            raise BadValue.of(f"messages.{number}", message, why)
    if not messages:
        raise BadValue.of("messages", messages, "expected at least one message")
    return [(message["role"], message["content"]) for message in messages]


def load_policy(run: str | os.PathLike[str], checkpoint: str | int = "last") -> Policy:
    """Loads the policy of a checkpoint of a run, given by its folder, for example `runs/demo`.

    `checkpoint` is last, best (the highest success in validation) or the step of a checkpoint. Raises a `UserError` if
    there is no run or no such checkpoint, or a file that the run needs cannot be read.
    """
    config = read_config(run)
    with refusals():
        loaded = run_policy.load_policy(run, config, str(checkpoint))
    return Policy(**vars(loaded), run=Path(run), config=config)


def rollout(
    policy: Policy,
    episodes: int = 8,
    *,
    task: int = 0,
    split: Split = Split.TEST,
    temperature: float = 1.0,
    seed: int = 0,
) -> Trajectory:
    """Plays one episode on each of several levels, on the first device; returns NumPy arrays [episodes, ...].

    The level and the random numbers of an episode depend only on the seed and the index of the episode.
    Log-probabilities may differ in their last bits between two values of `episodes`, because a matrix product of
    another shape adds in another order. Each call compiles its program, unless a persistent compilation cache is set
    up (`jax_compilation_cache_dir`).

    Levels are all different: episodes are fewer than wanted where the split has not so many. `task` is an index into
    the configuration of the run. No training episode starts from a `Split.TEST` level. Temperature 0 takes the most
    likely token. Raises a `UserError` if an argument is out of range, the run was trained on services, or the levels
    cannot be used.
    """
    tasks = policy.config.tasks
    if not isinstance(episodes, Integral) or episodes < 1:
        raise UserError.of("episodes", episodes, "expected an integer of at least 1")
    if not 0 <= task < len(tasks):
        raise UserError.of("task", task, f"expected an index from 0 to {len(tasks) - 1}")
    if not 0 <= temperature <= LARGEST:
        raise UserError.of("temperature", temperature, "expected 0 or more")
    if not isinstance(seed, Integral) or not 0 <= seed < 2**32:
        raise UserError.of("seed", seed, f"expected an integer from 0 to {2**32 - 1}")
    if split not in SHARES:
        raise UserError.of("split", split, f"expected one of {', '.join(f'Split.{known.name}' for known in SHARES)}")
    with refusals():
        batched_env = build.build_compiled_env(policy.config, policy.tokenizer)
        engine = build_inputs.engine_config(policy.config, policy.tokenizer, group_size=1, slots=0)
        build.check_positions(policy.pretrained, batched_env, engine)
        levels = EvalSet(
            program=Programs(make_mesh(1)).rollout("rollout", policy.model, batched_env, engine),
            chunk=episodes,
            batched_env=batched_env,
            settings=build_inputs.rollout_settings(policy.config, batched_env, 1, 0.0),
            prompt=policy.config.prompt,
            task=task,
            levels=level_splits(batched_env).tasks[task],
            split=split,
            seed=seed,
        )
        return levels.play(policy.params, levels.number(episodes), temperature)


def runs(folder: str | os.PathLike[str] = "runs") -> "pandas.DataFrame":
    """Returns what `agentrl runs FOLDER` lists: a row for each run and evaluation in a folder and in folders below it.

    The columns are kind (run, comparison, evaluation, api), name (the path below the folder), path, state, iteration,
    iterations (configured), success (0 to 1) with low and high (its 95 % interval, where it is stored) and `of`
    (held-out, validation, training, sampled, greedy, items), date (local time), and by dotted key the settings in which
    runs differ, or evaluations were made. What is not known is missing. A line on standard error names each file that
    cannot be read. Raises a `UserError` if there is no such folder.
    """
    import pandas

    frame = pandas.DataFrame(as_records(find_runs(folder, to_stderr)))
    return frame.assign(date=pandas.to_datetime(frame["date"])) if len(frame) else frame
