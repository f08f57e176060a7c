from types import SimpleNamespace

import numpy as np
import pytest
from made_up import NO_CRITIC, fresh_state

from agentrl_jax.config import Config
from agentrl_jax.config.schema import BestConfig, TrainConfig
from agentrl_jax.evaluate.held_out import Evaluated
from agentrl_jax.learner.state import Kept, with_kept
from agentrl_jax.train.best import evaluate_best

LAST = Evaluated({"sampled": [True, False, False, False], "greedy": [False] * 4}, [], 1.0, 1.0)
BEST = Evaluated({"sampled": [True, True, True, False], "greedy": [True] * 4}, [], 1.0, 1.0)


@pytest.mark.parametrize(("average", "step", "played"), [(False, 3, True), (True, 3, True), (False, 7, False)])
def test_the_best_policy_is_played_on_the_levels_of_the_evaluation(average, step, played):
    state = with_kept(fresh_state(NO_CRITIC), Kept(average=average))
    seen = []

    def restore_part(number, like):
        seen.append((number, *like))
        return {name: {"policy": "stored"} if name == "params" else "stored" for name in like}

    def outcomes(params, between):
        seen.append(params["policy"])
        return BEST

    checkpoints = SimpleNamespace(
        wait=lambda: None, best_step=lambda: step, best_score=lambda: -0.25, restore_part=restore_part
    )
    config = Config(train=TrainConfig(best=BestConfig(metric="actor/kl", mode="min", evaluate=True)))
    progress = SimpleNamespace(
        checkpoints=checkpoints, parts=SimpleNamespace(config=config), view=SimpleNamespace(note=lambda line: None)
    )
    found = evaluate_best(progress, SimpleNamespace(outcomes=outcomes), state, LAST, 7)
    assert seen == ([(3, "average" if average else "params"), "stored"] if played else [])
    assert (found["iteration"], found["metric"], found["value"]) == (step, "actor/kl", 0.25)
    assert (found["sampled"]["mean"], found["greedy"]["mean"]) == ((0.75, 1.0) if played else (0.25, 0.0))
    assert found["over_last"]["mean"] == pytest.approx(0.5 if played else 0.0)
    assert np.isfinite([found[how][bound] for how in ("sampled", "over_last") for bound in ("low", "high")]).all()


def test_without_a_finite_validation_there_is_no_best():
    checkpoints = SimpleNamespace(wait=lambda: None, best_step=lambda: None, best_score=lambda: -np.inf)
    progress = SimpleNamespace(checkpoints=checkpoints, parts=SimpleNamespace(config=Config()))
    assert evaluate_best(progress, SimpleNamespace(), None, LAST, 7) is None
