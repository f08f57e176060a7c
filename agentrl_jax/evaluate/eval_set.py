"""Held-out evaluation: the same levels for every policy, one episode per level."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from agentrl_jax.config import Config
from agentrl_jax.config.checks import check_sizes
from agentrl_jax.config.tasks import PANEL
from agentrl_jax.errors import UserError, counted, refusals
from agentrl_jax.evaluate import panels, recording, records, results, retry
from agentrl_jax.evaluate.evaluated_task import with_task
from agentrl_jax.evaluate.level_set import LevelSet, level_set
from agentrl_jax.evaluate.limits import Limits, with_limits
from agentrl_jax.evaluate.seen import learned_from, seen_levels
from agentrl_jax.evaluate.selectors import Selector, best_of_selector
from agentrl_jax.formats.dialogs import message_format
from agentrl_jax.offline.conversations import Conversation, Message
from agentrl_jax.parallel import hosts
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.trajectory import RolloutSettings, Trajectory
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.services.catalog import success_rule
from agentrl_jax.services.screenshots import WITHOUT_RECORD, Screenshots, refuse_without
from agentrl_jax.setup import build, build_inputs
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.setup.policy import RunPolicy, load_policy
from agentrl_jax.setup.programs import Programs, RolloutProgram
from agentrl_jax.setup.service_tasks import Services, batched_envs
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax.splits import MAX_LEVEL_TRIES

TRIES = 3
"""How often a held-out episode is played if its environment fails."""

Params = dict[str, Any]
"""Parameters of a policy, as `TrainState.merged_params` returns them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalSet(LevelSet):
    """Levels of one task, and the program that plays them."""

    program: RolloutProgram
    """Rollout of `chunk` episodes with group size 1."""
    chunk: int
    settings: RolloutSettings
    """Settings of a rollout; `settings_at` replaces split and temperature."""

    def settings_at(self, temperature: float) -> RolloutSettings:
        """Settings of one dispatch."""
        split = jnp.asarray(self.levels.split(self.split), jnp.int32)
        return self.settings.replace(temperature=jnp.full(self.chunk, temperature, jnp.float32), split=split)

    def contents(self, number: int, tokenizer: Tokenizer) -> list[str]:
        """The contents of levels 0 to `number` - 1, as `offline.Conversation.content` has them."""
        env, form = self.batched_env, message_format(self.prompt, tokenizer)

        def first(key, ids, settings):
            return env.reset(key, settings, ids)[1]

        made_of = ("first_messages", env)
        message = jit_once(first, made_of)(self.key, self.ids(0, number, number), self.settings_at(1.0))
        prefix = env.prefix[self.task][: env.prefix_length[self.task]].tolist()
        found = []
        for tokens, length in zip(*jax.device_get((message.tokens, message.length))):
            system, user, _ = form.first(tokenizer.decode([*prefix, *tokens[:length].tolist()], skip_special=False))
            messages = [Message("user", user)] if system is None else [Message("system", system), Message("user", user)]
            found.append(Conversation((*messages, Message("assistant", ""))).content())
        return found

    def play(
        self,
        params: Params,
        episodes: int,
        temperature: float,
        sample: int = 0,
        between: Callable[[], None] = lambda: None,
    ) -> Trajectory:
        """Plays levels 0 to `episodes` - 1 once each; leaves of the trajectory are NumPy arrays [n, ...].

        An episode does not depend on `episodes`, and a level is the same at every temperature and in every `sample`,
        which is another episode on it. Episodes whose environment fails are played again. `between` is called after
        every dispatch.

        Raises:
            UserError: environments failed every time.
        """
        settings = self.settings_at(temperature)
        parts = []
        for first in range(0, episodes, self.chunk):
            ids = self.ids(first, self.chunk, episodes, sample=sample)
            dispatch = functools.partial(self.program, params, self.key, ids, settings)
            parts.append(self._retry_failed(dispatch, min(self.chunk, episodes - first)))
            between()
        return jax.tree.map(lambda *x: np.concatenate(x)[:episodes], *parts)

    def _retry_failed(self, dispatch: Callable[[], tuple[Trajectory, Any]], count: int) -> Trajectory:
        """Repeats a dispatch until none of its first `count` episodes has failed."""
        found = hosts.fetch(dispatch()[0])
        for _ in range(TRIES - 1):
            if not found.failed[:count].any():
                break
            failed, again = found.failed, hosts.fetch(dispatch()[0])
            found = jax.tree.map(functools.partial(_where, failed), again, found)
        self.batched_env.clear()  # closes what has already ended on the device
        if found.failed[:count].any():
            if failures := self.batched_env.take_report().failures:
                why = f"{failures[-1].error}; see whether the environment works"
            else:
                why = f"{MAX_LEVEL_TRIES} keys gave no level of the {self.split.name.lower()} split; use larger levels"
            name, failed = self.batched_env.tasks[self.task].name, int(found.failed[:count].sum())
            message = f"{failed} of {count} held-out episodes of {name} failed {TRIES} times; {why}"
            raise UserError(message, key=name, value=failed)
        return found


def _where(rows: Bool[np.ndarray, " n"], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(rows.reshape(rows.shape + (1,) * (a.ndim - 1)), a, b)


def evaluate_run(
    run: str | os.PathLike[str],
    *,
    checkpoint: str = "last",
    env: str | None = None,
    levels: str | None = None,
    panel: str | None = None,
    episodes: int | None = None,
    temperature: float | None = None,
    samples: int = 1,
    best_of: Sequence[int] = (),
    selector: Selector = "oracle",
    attempts: Sequence[int] = (),
    clusters: bool = False,
    seed: int | None = None,
    limits: Limits | None = None,
    record: str | os.PathLike[str] | None = None,
    screenshots: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Evaluates a checkpoint of a run: last, best (the highest success in validation), or that of a step.

    Unreadable rows of its records are reported but not refused: success depends on the checkpoint alone, and only the
    number of levels learned from needs the records. That number is None if they have a gap.

    `env` is the tag of another environment than that of the run's first task; if the run has a task with this tag, its
    options and levels apply; for a run on services it is one of its tags. `levels` is a file with levels, or
    one of `NAMED_LEVELS`, each played once. `panel` is the name of a panel, which fixes environment, levels, seed and
    limit of actions. `episodes`, `temperature` (of the sampled evaluation) and `seed` replace those of the section
    `evaluation`. The sampled agent plays each level `samples` times. Of each number of samples in `best_of`, `selector`
    takes one, see `selectors`. `attempts` are numbers of attempts at a level with feedback in between, beside as many
    samples without it, see `retry`. With `clusters`, levels of one category are a cluster of all intervals but those
    of the categories, see `statistics.mean_interval`. `limits` replace the run's limits of turns and tokens. All
    episodes are recorded in the new folder `record`, if given, see `recording.recording`; with `attempts`, those with
    retries only. `screenshots` keeps those that a service gives there, too.

    Returns:
        run, step (of the checkpoint), iteration, env, episodes, samples, seed, temperature; `seen`, from
        `seen.seen_levels`; `success` (avg@k of k
        samples) and `success_greedy`, each {mean, low, high, n} with levels as unit; with several samples, `pass_at`
        and `pass_all` by the number of samples (1, 2, 4, ... and all), see `statistics`; with numbers in `best_of`, a
        `best_of` with the selector and `success` by the number; with `attempts`, a `retry`, see
        `retry.evaluate`; `return` (raw, sampled); `mean_turns` and `mean_tokens` of sampled episodes; if known,
        `random`, `null` and `optimal`, exact on the same levels within the agent's budget, `optimal_is`, see
        `Baselines`, and `gap_closed`, the share of the difference between random and optimal play that the sampled
        agent closes; for environments with a stricter rule, `strict_success` and `strict_success_greedy`; for a service
        with several categories of items, and for `NAMED_LEVELS`, `categories` (families of the panel, or levels) with
        both successes of each; `outcomes`, these successes level by level, and `samples` of them; `levels_digest`,
        SHA-256 of the hashes of the levels' first states; with `panel`, its name and digest, and `agent` and
        `decoding`, see `records.Record`.

    Raises:
        UserError: the folder holds no run or no such checkpoint, the levels cannot be used, they are not the panel's,
            or `record` is not a new or empty folder.
    """
    own = read_config(run)
    if record is not None:
        recording.check_folder(record)
    elif screenshots:
        raise UserError(WITHOUT_RECORD, key="--screenshots")
    several = (*(("best_of", k) for k in best_of), *(("attempts", k) for k in attempts))
    for name, number in (("episodes", episodes), ("samples", samples), *several):
        if number is not None and number < 1:
            raise UserError.of(f"--{name}", number, "expected at least 1")
    samples = max((samples, *best_of, *attempts))
    if temperature is not None and not temperature > 0:
        raise UserError.of("--temperature", temperature, "expected a number above 0; the greedy result is always given")
    fixed = {"env": env, "levels": levels, "episodes": episodes, "seed": seed}
    given = [f"--{name} {value}" for name, value in fixed.items() if value is not None]
    if panel is not None and given:
        raise UserError.of("--panel", panel, f"which fixes the levels, but there is also {given[0]}; leave it out")
    wanted = None if panel is None else panels.get_panel(panel)
    with refusals():
        config = with_task(own, str(run), env, levels, panel)
        changes = {name: value for name, value in (("episodes", episodes), ("seed", seed)) if value is not None}
        config = config.replace(evaluation=config.evaluation.replace(**changes))
        config = config if limits is None else with_limits(config, limits)
    check_sizes(config)
    with contextlib.ExitStack() as stack:
        with refusals():
            policy = load_policy(run, own, checkpoint)
            best = best_of_selector(selector, policy, config) if best_of else None
            items = PANEL if config.tasks[0].levels == PANEL else None
            rules = wanted is not None and wanted.options.get("mode") == "upstream"
            eval_set, services = _load(run, config, policy, levels or items, stack, report, upstream=rules)
        retries = retry.load(config, policy, eval_set.batched_env, max(attempts)) if attempts else None
        learned = learned_from(Path(run), policy.step, report)
        # The levels of a file are played once each.
        all_levels = eval_set.batched_env.levels(0)
        number = eval_set.number(config.evaluation.episodes if levels is None else all_levels)
        chunk = min(number, config.train.validation_episodes)
        eval_set = dataclasses.replace(eval_set, chunk=chunk)
        boards = eval_set.boards(number)
        if wanted is not None and services is None:
            panels.check_shown(wanted, panels.shown_at(wanted, boards))
        env = config.tasks[0].env
        divided = eval_set.categories is not None if services is None else services.tasks[0].service.category
        if clusters and not divided:
            raise UserError(
                f"--clusters needs levels with categories, but those of {env} have none; leave it out", key="--clusters"
            )
        times = f", {samples} samples of each" if samples > 1 else ""
        report(f"{counted(number, 'level')} of {env}{times}, iteration {policy.iteration}")
        temperature = temperature or config.evaluation.temperature
        recorder = taken = None
        if screenshots:
            refuse_without(env)
        if record is not None and screenshots and services is not None:
            taken = services.screenshots = Screenshots(record, services.tasks[0].held_out[:number])
        if record is not None:
            recorder = stack.enter_context(
                recording.recording(
                    *(record, config, policy, eval_set),
                    episodes=number,
                    run=str(run),
                    groups=own.groups,
                    panel=wanted,
                    report=report,
                )
            )

        def episodes_of(temperature: float, sample: int) -> Trajectory:
            if taken is not None:  # by the number of the recorded file
                taken.play = recording.number(temperature, sample)
            played = eval_set.play(policy.params, number, temperature, sample)
            if recorder is not None and not attempts:
                recorder.write(played, temperature, sample)
            return played

        played = results.play(episodes_of, temperature, samples, best, report)
        if taken is not None:
            report(taken.summary())
        if wanted is not None and services is not None:
            panels.check_shown(wanted, services.first_observations(0))
        categories = None if eval_set.categories is None else eval_set.categories[:number]
        if services is not None:  # known only now, for servers that number their items differently
            categories = services.categories([number])
        found = {"run": os.fspath(run), "step": policy.step, "iteration": policy.iteration, "env": env}
        found |= {"episodes": number, "samples": samples}
        found |= {"seed": eval_set.seed, "temperature": temperature, "success_rule": success_rule(env)}
        with refusals("--clusters"):
            found |= results.rates(
                played, eval_set.baselines(number), categories, clusters=clusters, best=best, best_of=best_of
            )
        if retries is not None:
            on_retries = dataclasses.replace(
                eval_set,
                batched_env=retries.env,
                program=retries.program,
                settings=eval_set.settings.replace(horizon=retries.turns),
            )

            def retried(temperature: float) -> Trajectory:
                episodes = on_retries.play(policy.params, number, temperature)
                if recorder is not None:
                    recorder.write(episodes, temperature, 0, attempts=max(attempts))
                return episodes

            found["retry"] = retry.evaluate(
                *(retried, temperature, retries, played, attempts, report), clusters=categories if clusters else None
            )
        task = eval_set.batched_env.tasks[eval_set.task]
        found["seen"] = seen_levels(learned, played.ids, eval_set.levels, task, boards)
        if wanted is not None:
            found["panel"] = {"name": wanted.name, "sha256": wanted.sha256}
            found |= records.of_run(str(run), policy, config, temperature, samples)
        return found


def _load(
    run: str | os.PathLike[str],
    config: Config,
    policy: RunPolicy,
    levels: str | None,
    stack: contextlib.ExitStack,
    report: Callable[[str], None],
    *,
    upstream: bool,
) -> tuple[EvalSet, Services | None]:
    """The levels to evaluate, of the configuration's one task; services are closed by the stack, see `Services`.

    `levels` is a file all of whose levels are played, or one of `NAMED_LEVELS`.
    """
    services = Services.of(config, lambda: Path(run), upstream=upstream)
    if services is not None:
        services.log_to(Path(run))
        stack.callback(services.close)
    batched_env = batched_envs(config, policy.tokenizer, services)[1]
    engine = build_inputs.engine_config(config, policy.tokenizer, group_size=1, slots=0)
    build.check_positions(policy.pretrained, batched_env, engine)
    chosen, programs = level_set(config, batched_env, levels, services), Programs(make_mesh(1))
    programs.note = report
    eval_set = EvalSet(
        program=programs.rollout("evaluation", policy.model, batched_env, engine),
        chunk=config.train.validation_episodes,
        settings=build_inputs.rollout_settings(config, batched_env, 1, 0.0),
        **vars(chosen),
    )
    return eval_set, services
