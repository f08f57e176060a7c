"""Checks of the stages of a configuration, see `checks`."""

from collections.abc import Iterator
from typing import Any

from agentrl_jax.config.schema import Config
from agentrl_jax.config.stages import DataStage, DpoStage, EvolveStage

Refused = tuple[str, Any, str]


def check_without_tasks(config: Config) -> Iterator[Refused]:
    """Refuses what nothing does or reads in a run without tasks."""
    kinds = [stage.kind for stage in config.stages]
    if not kinds or {*kinds} - {"sft", "dpo"}:
        yield "tasks", [], f"but stages is {kinds}; name a task, or learn from data alone, by sft and dpo"
    for index, stage in enumerate(config.stages):
        if isinstance(stage, DpoStage) and stage.levels:
            yield f"stages.{index}.levels", stage.levels, "but there are no tasks; give data, or name a task"
    usual = Config()
    # Rows of data are packed too, and a stored configuration has the default number of buckets filled in.
    for name in ("env", "rollout", "algo", "evaluation"):
        now, before = getattr(config, name), getattr(usual, name)
        for key in type(now).model_fields:
            if getattr(now, key) != getattr(before, key) and key not in ("packing", "length_buckets"):
                yield f"{name}.{key}", getattr(now, key), "which nothing reads without tasks; leave it out"


def check_stages(config: Config) -> Iterator[Refused]:
    """Refuses stages in an order that cannot be, and what none of them reads."""
    kinds, imitates = [stage.kind for stage in config.stages], config.imitation.levels > 0
    for kind in ("imitation", "rl"):
        if kinds.count(kind) > 1:
            yield "stages", kinds, f"expected {kind} once at most, since one section of the file says what it does"
    read = {"imitation", "evolve"} & {*kinds}
    if kinds and (not read if imitates else "imitation" in read):
        why = "which nothing reads; add imitation to stages" if imitates else "but stages has imitation; set it above 0"
        yield "imitation.levels", config.imitation.levels, why
    if "rl" in kinds[:-1]:
        yield "stages", kinds, "expected rl as the last one; start another run from this one with --from"
    if kinds and "rl" not in kinds and config.train.iterations:
        yield "train.iterations", config.train.iterations, "which nothing reads; add rl to stages"
    for index, stage in enumerate(config.stages):
        if isinstance(stage, EvolveStage) and not stage.steps:
            yield f"stages.{index}.steps", 0, "expected the gradient steps of each round"
        if isinstance(stage, DpoStage) and stage.loss == "none" and not stage.nll_coef:
            yield f"stages.{index}.nll_coef", 0.0, "but loss is none, so that nothing is learned; set it above 0"
        own = stage.levels if isinstance(stage, DpoStage) else imitates and stage.kind == "evolve"
        if isinstance(stage, DpoStage) and stage.levels:
            if stage.data:
                yield f"stages.{index}.levels", stage.levels, "but data has pairs; leave one of them out"
            if not stage.steps:
                yield f"stages.{index}.steps", 0, "expected the gradient steps of a stage whose pairs are found by it"
            if config.on_host:
                why = "but only compiled environments have planners for it; leave it out"
                yield f"stages.{index}.levels", stage.levels, why
        if isinstance(stage, DataStage) and not stage.data and not own:
            yield f"stages.{index}.data", [], "expected files or folders with conversations"
