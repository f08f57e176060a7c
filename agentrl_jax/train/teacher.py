"""The teacher of self-distillation: the plans that it reads, and how well it plays with them."""

import jax
import numpy as np

from agentrl_jax.config import Config
from agentrl_jax.config.distillation import SelfDistillation
from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.eval_set import EvalSet, Params
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.learner.state import TrainState
from agentrl_jax.parallel import hosts
from agentrl_jax.rollout.trajectory import Hints, Trajectory
from agentrl_jax.setup.parts import RunParts
from agentrl_jax.setup.plan_hints import of_others, turns_on_plan

LEAST_GAIN = 0.2
"""By so much a teacher has to be better than its student before the first iteration."""


class Teacher:
    """What a run needs of a teacher that reads plans."""

    def __init__(self, parts: RunParts, held_out: HeldOut, rule: SelfDistillation):
        """Searches and plays nothing yet."""
        assert parts.plan_hints is not None
        self._parts, self._held_out, self._rule = parts, held_out, rule
        self._plans, self._wrong = parts.plan_hints, rule.context == "wrong_plan"

    @classmethod
    def of_run(cls, parts: RunParts, held_out: HeldOut) -> "Teacher | None":
        """The teacher of a run; None if it has none that reads plans."""
        rule = parts.config.algo.distillation
        return cls(parts, held_out, rule) if rule.kind == "self" and rule.has_plans else None

    def hints(self, key: jax.Array, trajectory: Trajectory) -> tuple[Hints, float]:
        """The hints for the episodes of a rollout with this key, and the share of them that has a plan."""
        ids, actions = hosts.fetch((trajectory.ids, trajectory.turn.actions))
        plans, wrong = self._plans.of_episodes(key, ids, self._parts.train_splits)
        hints = self._plans.write(wrong if self._wrong else plans, ids.task, turns_on_plan(actions, plans))
        return hints, float(np.mean([plan is not None for plan in plans]))

    def measure(self, state: TrainState) -> dict[str, float]:
        """Success of the teacher on the validation levels, as mean over tasks, and that of the student on the same."""
        rule, params = self._rule, state.merged_params()
        taught = {"current": params["policy"], "ema": state.teacher, "reference": state.reference}[rule.teacher]
        success: dict[str, list[float]] = {"teacher": [], "student": []}
        wanted, temperature = self._parts.config.train.validation_episodes, self._temperature
        for index, levels in enumerate(self._held_out.validations):
            count = levels.number(wanted)
            played = self._play({**params, "policy": taught}, levels, index, count)
            success["teacher"].append(float(played.mean()))
            success["student"].append(float(levels.play(params, count, temperature).success.mean()))
        return {f"distill/{name}_success": float(np.mean(of)) for name, of in success.items()}

    @property
    def _temperature(self) -> float:
        return self._parts.config.train.validation_temperature

    def _play(self, params: Params, levels: EvalSet, task: int, count: int) -> np.ndarray:
        """Success bool[count] of a policy that reads the plans of the first levels."""
        plans = self._plans.search(task, levels.boards(count))
        plans = of_others(plans) if self._wrong else plans
        hints, found = self._plans.write(plans, np.full(count, task)), []
        for first in range(0, count, levels.chunk):
            ids = levels.ids(first, levels.chunk, count)
            own = jax.tree.map(lambda x, first=first: x[(first + np.arange(levels.chunk)) % count], hints)
            settings = levels.settings_at(self._temperature).replace(hints=own)
            found.append(hosts.fetch(levels.program(params, levels.key, ids, settings)[0].success))
        return np.concatenate(found)[:count]


def check_teacher(config: Config, measured: dict[str, float]) -> str:
    """What to say of a teacher before the first iteration.

    Raises:
        UserError: it is not `LEAST_GAIN` better than its student, and the run does not accept that.
    """
    rule = config.algo.distillation
    assert isinstance(rule, SelfDistillation)
    teacher, student = measured["distill/teacher_success"], measured["distill/student_success"]
    found = f"the teacher solves {teacher:.1%} of the validation levels with its prompt ({rule.context}), "
    found += f"the student {student:.1%}"
    if teacher - student >= LEAST_GAIN:
        return found
    weak = f"less than {LEAST_GAIN:.0%} more"
    if not rule.accept_weak_teacher:
        how = "show plans to the demonstrations that the policy imitates (imitation.hinted), or set it to true"
        raise UserError.of("algo.distillation.accept_weak_teacher", False, f"but {found}, {weak}; {how}")
    return f"{found}, {weak}"
