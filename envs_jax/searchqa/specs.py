"""The registry's entry of searchqa."""

from envs_jax import searchqa
from envs_jax.reference import Floors
from envs_jax.registry import Spec
from envs_jax.searchqa import corpus_scripts, policies

SPECS = {
    "searchqa": Spec(
        searchqa.make_searchqa,
        "questions answered by searching: about invented worlds, or over a corpus of yours (options corpus, questions)",
        "the answer matches exactly, as SQuAD normalizes it, or is right by the rule of its option reward",
        max_actions=4,
        solve=policies.solve,
        floors=Floors(
            constant=0.3, repeat_last=0.3, random=0.5, gap=0.3, why="the share of questions that nothing answers"
        ),
        checked_seeds=1000,
        scripts=corpus_scripts.either(policies.SCRIPTS),
        policies=policies.POLICIES,
    )
}
