"""The best checkpoint of a run, by its validations, on the levels of its evaluation."""

from typing import Any

import jax

from agentrl_jax.evaluate.held_out import Evaluated, HeldOut
from agentrl_jax.evaluate.statistics import paired_interval, success_interval
from agentrl_jax.learner.state import TrainState
from agentrl_jax.parallel import hosts
from agentrl_jax.train.progress import RunProgress


def evaluate_best(
    progress: RunProgress, held_out: HeldOut, state: TrainState, of_last: Evaluated, iterations: int
) -> dict[str, Any] | None:
    """The best checkpoint of a run on the levels of its evaluation, which did not choose it; None if there is none.

    `state` is that after so many `iterations`, and `of_last` its evaluation.

    Returns:
        iteration; metric and value of `train.best`; sampled and greedy: intervals of success; over_last: the interval
        of its sampled success minus that of the last policy, paired by level.
    """
    checkpoints, best = progress.checkpoints, progress.parts.config.train.best
    hosts.from_writer(checkpoints.wait)
    step, score = hosts.from_writer(lambda: (checkpoints.best_step(), checkpoints.best_score()))
    if step is None:
        return None
    before = progress.parts.config.rows_before_rl
    found, iteration = of_last, step - before
    if iteration != iterations:
        progress.view.note(f"evaluating iteration {iteration}, the best")
        of_policy = {"params": {"policy": state.params["policy"]}}
        of_policy = of_policy if state.average is None else {"average": state.average}
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), of_policy)
        read = checkpoints.restore_part(step, shapes)
        policy = read["params"]["policy"] if state.average is None else read["average"]
        params = state.merged_params({**state.params, "policy": policy})
        found = held_out.outcomes(params, lambda: progress.stop_if_asked(before + iterations, state))
    return {
        "iteration": iteration,
        "metric": best.metric,
        "value": -score if best.mode == "min" else score,
        **{how: success_interval(of) for how, of in found.success.items()},
        "over_last": paired_interval(found.success["sampled"], of_last.success["sampled"]),
    }
