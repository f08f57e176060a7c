import chex
import jax
import made_run

from agentrl_jax.api import load_policy, rollout


def test_an_episode_does_not_depend_on_how_many_are_played(tmp_path):
    policy = load_policy(made_run.write_run(tmp_path / "run"))
    some, more = (rollout(policy, number, seed=5) for number in (3, 4))
    chex.assert_trees_all_close(some, jax.tree.map(lambda x: x[:3], more), rtol=0, atol=1e-5)
