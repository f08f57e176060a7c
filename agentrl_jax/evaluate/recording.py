"""Records the episodes of an evaluation token by token, in the files that training records its rollouts in.

Shapes: `n` levels, `T` turns, `L` tokens of a response.
"""

import contextlib
import dataclasses
import operator
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.config import Config
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.evaluate.level_set import LevelSet
from agentrl_jax.evaluate.panels import OtherLevels, Panel
from agentrl_jax.learner.recorded import RecordedScores
from agentrl_jax.models.io.safetensors_files import refuse_nonempty
from agentrl_jax.parallel import hosts
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.runs.rollout_records import Evaluation, Header, RolloutRecord, recorded_iterations, write_record
from agentrl_jax.runs.run_folder import write_config
from agentrl_jax.setup.agents import context_of
from agentrl_jax.setup.policy import RunPolicy
from agentrl_jax.setup.programs import Programs
from agentrl_jax.setup.stored_traits import TRAITS_FILE

_ROWS = 16
"""Most episodes that are scored at once, which bounds the memory for it."""


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Refuses a folder for records that is not new or empty.

    Raises:
        UserError: the path exists and is not an empty folder.
    """
    with refusals("--record"):
        refuse_nonempty(Path(folder))


def number(temperature: float, sample: int) -> int:
    """The number of the file with a sample, or with greedy play, which has temperature 0."""
    return 1 if temperature == 0 else sample + 2


@dataclasses.dataclass(frozen=True)
class EpisodeRecorder:
    """Writes the episodes of one evaluation into a folder, see `runs.rollout_records`."""

    folder: Path
    config: Config
    """That of the evaluation."""
    policy: RunPolicy
    levels: LevelSet
    run: str
    panel: Panel | None
    score: Callable[..., RecordedScores]
    """(params, trajectory, temperature) of `rows` episodes."""
    rows: int
    report: Callable[[str], None]

    def write(self, played: Trajectory, temperature: float, sample: int, *, attempts: int = 1) -> None:
        """Writes one episode per level; temperature 0 is greedy play, of which there is one sample.

        Args:
            played: leaves are NumPy arrays [n, ...].
            temperature: that the episodes were sampled with.
            sample: from 0.
            attempts: maximum number of attempts at a level, each with the turns of the configuration.
        """
        greedy, (task,) = temperature == 0, self.config.tasks
        panel = self.panel
        evaluation = Evaluation(
            sample=None if greedy else sample,
            seed=self.levels.seed,
            split=int(self.levels.split),
            run=self.run,
            iteration=self.policy.iteration,
            panel=None if panel is None else panel.name,
            panel_sha256=None if panel is None else panel.sha256,
            attempts=attempts,
        )
        header = Header(
            step=self.policy.step,
            iteration=number(temperature, sample),
            roll_backs=0,
            tasks=(task.label,),
            group_size=1,
            episodes=len(played.num_turns),
            horizon=attempts * self.config.prompt.max_turns,
            temperature=temperature,
            evaluation=evaluation,
        )
        record = RolloutRecord.of_trajectory(header, played, self._scores(played, temperature))
        path = write_record(self.folder, record)
        self.report(f"recorded {header.label}: {header.episodes} episodes in {path}")

    def _scores(self, played: Trajectory, temperature: float) -> RecordedScores:
        count, temperatures = len(played.num_turns), jnp.full(self.rows, temperature, jnp.float32)
        parts = []
        for first in range(0, count, self.rows):
            # The last part is filled up with its last episode, so that all parts share one compiled program.
            number = np.minimum(np.arange(first, first + self.rows), count - 1)
            rows = jax.tree.map(operator.itemgetter(number), played)
            parts.append(hosts.fetch(self.score(self.policy.params, rows, temperatures)))
        return jax.tree.map(lambda *x: np.concatenate(x)[:count], *parts)


@contextlib.contextmanager
def record_folder(folder: str | os.PathLike[str], config: Config, *, groups: int) -> Iterator[Path]:
    """A folder for records, whose `config.yaml` is that of the evaluation, see `recorded_config`; see `check_folder`.

    It is deleted if the evaluation is refused before it has written a record, or because what was played are not the
    levels of its panel. If it fails later or is interrupted, the finished records are kept.

    Raises:
        UserError: the folder cannot be written.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_config(path, recorded_config(config, str(folder), groups))
    except OSError as error:
        raise UserError.of("--record", folder, f"which cannot be written ({error.strerror}); name another") from error
    try:
        yield path
    except UserError as error:
        if isinstance(error, OtherLevels) or not recorded_iterations(path):
            shutil.rmtree(path, ignore_errors=True)
        raise


@contextlib.contextmanager
def recording(
    folder: str | os.PathLike[str],
    config: Config,
    policy: RunPolicy,
    levels: LevelSet,
    *,
    episodes: int,
    run: str,
    groups: int,
    panel: Panel | None = None,
    report: Callable[[str], None],
) -> Iterator[EpisodeRecorder]:
    """A recorder that writes into a `record_folder`. Every file is complete once it is there.

    Args:
        folder: new or empty, see `check_folder`.
        config: that of the evaluation, with its one task.
        policy: that plays.
        levels: that are played.
        episodes: number of these levels.
        run: folder of the policy's run, as it was given.
        groups: groups of the run, see `recorded_config`.
        panel: whose levels these are, if any.
        report: gets a line for every file.

    Raises:
        UserError: the folder cannot be written.
    """
    rows, rollout = min(episodes, _ROWS), config.rollout
    score = Programs(make_mesh(1)).recorded(
        policy.model, rows, context=context_of(config), context_tokens=rollout.context_tokens
    )
    with record_folder(folder, config, groups=groups) as path:
        if (traits := Path(run, TRAITS_FILE)).is_file():
            shutil.copyfile(traits, Path(path, TRAITS_FILE))
        yield EpisodeRecorder(path, config, policy, levels, run, panel, score, rows, report)


def recorded_config(config: Config, folder: str, groups: int) -> Config:
    """The configuration of an evaluation, in the form in which that of a run can be read.

    Values that only training reads, and that do not go with the task of the evaluation, are adapted: its one task has
    as many groups as all tasks of the run, no more actions are allowed in a turn than in an episode, and a service
    without validation items is not validated.
    """
    (task,), prompt, train = config.tasks, config.prompt, config.train
    per_turn = min(prompt.max_actions_per_turn, prompt.max_actions)
    if not config.prompt.has_answer_block and not task.validation:
        train = train.replace(validate_every=0)
    return config.replace(
        run_dir=folder,
        tasks=(task.replace(groups=groups),),
        prompt=prompt.replace(max_actions_per_turn=per_turn) if config.prompt.has_answer_block else prompt,
        train=train,
    )
