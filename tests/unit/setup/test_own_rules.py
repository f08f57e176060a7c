"""Functions of the user take the place of an estimator or an objective; what they do wrong is refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusing import refusal

from agentrl_jax.algos import filters, losses
from agentrl_jax.algos.estimate import estimate
from agentrl_jax.config import decode, load_resolved, save_resolved, to_dict
from agentrl_jax.config.advantages import Grpo
from agentrl_jax.config.objectives import Cispo
from agentrl_jax.setup import build_model, own_sources
from agentrl_jax.setup.own_checks import advantage_inputs, filter_inputs, objective_inputs
from agentrl_jax.setup.own_rules import copy_own_rules, with_own_rules
from agentrl_jax.setup.own_sources import name_module

RULES = """
@rule(needs=("groups",))
def centered(inputs: AdvantageInputs, *, strength: Annotated[float, Field(gt=0)] = 1, whole: bool = True):
    base = groups.group_mean(inputs.scores, inputs.valid)[:, None]
    return strength * (inputs.scores - base).reshape(-1, 1) * inputs.mask

@rule(needs=("ratio",))
def capped(inputs: ObjectiveInputs, *, cap: float = 2.0):
    ratio = jnp.exp(inputs.logprob - inputs.old_logprob)
    return -jax.lax.stop_gradient(jnp.minimum(ratio, cap)) * inputs.advantage * inputs.logprob

@rule(needs=("critic", "devices"))
def above(inputs: AdvantageInputs, *, scale: float):
    mean = inputs.devices.sum(jnp.sum(inputs.rewards)) / inputs.devices.sum(jnp.sum(inputs.mask))
    return inputs.mask * (mean - scale * inputs.values), inputs.rewards

@rule(needs=("ratio",), unit="row")
def of_rows(inputs: ObjectiveInputs):
    gap = jnp.where(inputs.mask, jnp.clip(inputs.logprob - inputs.old_logprob, -1, 1), 0.0)
    mean = jnp.mean(gap, axis=1, keepdims=True)
    return -inputs.advantage * jnp.exp(mean), jnp.abs(gap) >= 1

@rule()
def uneven(inputs: FilterInputs, *, least: float = 0.1):
    return groups.center_and_std(inputs.returns, inputs.valid)[1] >= least

def plain(inputs):
    return inputs
"""


def config_of(**kinds):
    return decode({"algo": {"preset": "grpo", "aggregation": "token_mean", **kinds}})


def test_numbers_defaults_and_needs_are_filled_in_and_stored(module, tmp_path):
    name = module(RULES)
    algo = with_own_rules(
        config_of(advantage={"kind": f"{name}:centered", "strength": 2}, objective=f"{name}:capped")
    ).algo
    assert (algo.advantage.numbers, algo.advantage.static) == ({"strength": 2.0}, {"whole": True})
    assert (algo.advantage.needs, algo.objective.numbers, algo.objective.unit) == (("groups",), {"cap": 2.0}, "token")
    assert algo.advantage.source.startswith("sha256:")
    numbers = {"advantage.value_coef": 1.0, "advantage.strength": 2.0, "objective.cap": 2.0}
    assert algo.traced_keys() == numbers | {"kl.coef": algo.kl.coef, "kl.sync_mix": 1.0}
    config = with_own_rules(config_of(advantage={"kind": f"{name}:centered", "strength": 2}))
    assert config_of(advantage=to_dict(config)["algo"]["advantage"]).algo.advantage == config.algo.advantage
    save_resolved(config, tmp_path / "config.yaml")
    stored = load_resolved(tmp_path / "config.yaml")
    assert stored.algo == config.algo
    assert (stored.algo.advantage.per_group, stored.algo.advantage.has_critic) == (True, False)
    assert hash(stored.algo.advantage.untraced()) == hash(config.algo.advantage.untraced())


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({"kind": "NAME:centered", "strenght": 2.0}, "algo.advantage.strenght", 2.0),
        ({"kind": "NAME:centered", "strength": 0.0}, "algo.advantage.strength", 0.0),
        ({"kind": "NAME:centered", "whole": 1}, "algo.advantage.whole", 1),
        ({"kind": "NAME:above"}, "algo.advantage.scale", None),
        ({"kind": "NAME:capped"}, "algo.advantage", "NAME:capped"),
        ({"kind": "NAME:plain"}, "algo.advantage", "NAME:plain"),
        ({"kind": "NAME:gone"}, "algo.advantage", "NAME:gone"),
        ({"kind": "NAME.gone:x"}, "algo.advantage", "NAME.gone:x"),
        ({"kind": "NAME:centered", "value_coef": 2.0}, "algo.advantage.value_coef", 2.0),
    ],
)
def test_what_a_function_does_not_have_is_refused(given, key, value, module):
    name = module(RULES)
    given = given | {"kind": given["kind"].replace("NAME", name)}
    error = refusal(with_own_rules, config_of(advantage=given))
    value = value.replace("NAME", name) if isinstance(value, str) else value
    assert (error.key, error.value) == (key, value)


def test_only_a_module_that_the_user_names_is_imported_for_a_stored_run(module, tmp_path):
    name = module(RULES)
    held = to_dict(config_of(advantage={"kind": f"{name}:centered", "source": "sha256:0"}))
    error = refusal(with_own_rules, decode(held))
    assert (error.key, f"--rules {name}" in str(error)) == ("algo.advantage", True)
    save_resolved(config_of(advantage=f"{name}:centered"), tmp_path / "config.yaml")
    assert refusal(load_resolved, tmp_path / "config.yaml").value == f"{name}:centered"
    name_module(name)
    assert with_own_rules(decode(held)).algo.advantage.numbers == {"strength": 1.0}
    assert refusal(with_own_rules, decode(held), unchanged=True).value == f"{name}:centered"


def test_the_digest_and_the_copy_have_what_a_module_imports_from_its_folder(module, tmp_path):
    helper = module("SIZE = 1.0", head="")
    name = module(f"from {helper} import SIZE\n{RULES}")
    kind = f"{name}:centered"
    before = with_own_rules(config_of(advantage=kind))
    copy_own_rules(tmp_path, before)
    assert {path.name.partition(".")[0] for path in (tmp_path / "rules").iterdir()} == {helper, name}
    (tmp_path / f"{helper}.py").write_text("SIZE = 2.0")
    after = with_own_rules(config_of(advantage=kind))
    assert after.algo.advantage.source != before.algo.advantage.source
    copy_own_rules(tmp_path, after)
    assert len(list((tmp_path / "rules").iterdir())) == 3


def test_an_objective_of_the_user_has_the_bits_of_the_one_that_it_writes_out(module):
    section = with_own_rules(config_of(objective=f"{module(RULES)}:capped")).algo.objective
    inputs, cispo = objective_inputs(), Cispo(clip_low=1.0, clip_high=1.0)

    def loss(rule, numbers):
        def total(logprob):
            found, stats = losses.objective(inputs.replace(logprob=logprob), rule, numbers)
            return jnp.sum(jnp.where(inputs.mask, found, 0.0)), stats

        return jax.jit(jax.value_and_grad(total, has_aux=True))(inputs.logprob)

    (mine, stats), gradient = loss(section, {"cap": jnp.float32(2.0)})
    (known, of_known), known_gradient = loss(cispo, cispo.traced())
    assert mine == known
    np.testing.assert_array_equal(gradient, known_gradient)
    np.testing.assert_array_equal(stats.log_ratio, of_known.log_ratio)


def test_advantages_of_the_user_are_whitened_and_weighted_like_others(module):
    name, inputs = module(RULES), advantage_inputs()
    rule = with_own_rules(config_of(advantage={"kind": f"{name}:centered", "spread_weighted": True})).algo.advantage
    found, target = estimate(inputs, rule, {"strength": jnp.float32(1.0)})
    known, _ = estimate(inputs, Grpo(normalize_by_std=False, spread_weighted=True), {})
    counted = np.asarray(inputs.valid).reshape(-1)
    np.testing.assert_allclose(np.asarray(found)[counted], np.asarray(known)[counted], atol=1e-6)
    assert not np.any(target)
    critic = with_own_rules(config_of(advantage={"kind": f"{name}:above", "scale": 0.5})).algo.advantage
    assert critic.has_critic
    _, target = estimate(inputs, critic, {"scale": jnp.float32(0.5)})
    np.testing.assert_array_equal(target, inputs.rewards)


def test_a_filter_of_the_user_keeps_what_it_says(module):
    rule = with_own_rules(config_of(filter={"kind": f"{module(RULES)}:uneven", "least": 0.5})).algo.filter
    inputs = filter_inputs()
    found = filters.kept_groups(inputs, rule, {"least": jnp.float32(0.5)})
    kept = [np.std(row[known], ddof=1) >= 0.5 for row, known in zip(inputs.returns, inputs.valid) if known.sum() > 1]
    assert found.tolist() == [False, False, *kept[1:]]


def test_a_row_objective_refuses_an_aggregation_that_would_change_it(module):
    error = refusal(with_own_rules, config_of(objective=f"{module(RULES)}:of_rows"))
    assert (error.key, error.value) == ("algo.aggregation", "token_mean")


ADVANTAGES = {
    "raise ValueError('no')": "ValueError: no",
    "return inputs.rewards[:, 0]": "shape [12]",
    "return 3.0": "shape []",
    "return (inputs.rewards, inputs.rewards)": "tuple",
    "return inputs.rewards / 0": "not finite",
    "return inputs.rewards * jnp.log(jnp.sum(inputs.mask, axis=1, keepdims=True))": "not finite",
    "return inputs.rewards + 1": "outside the mask",
    "return inputs.mask * jnp.cumsum(inputs.rewards, axis=1) * inputs.scores.reshape(-1, 1)": "reads scores",
    "return inputs.mask * inputs.values": "reads values",
    "return inputs.mask * jnp.repeat(inputs.baseline, 3)[:, None]": "reads baseline",
    "return inputs.mask * inputs.state.sum()": "reads state",
    "return inputs.mask * (inputs.rewards - jnp.mean(inputs.turn_rewards))": "divided among devices",
    "return inputs.mask * inputs.devices.sum(1.0)": "AttributeError",
    "jax.debug.print('{}', inputs.rewards); return inputs.rewards": "calls Python",
    "return jax.pure_callback(np.asarray, inputs.rewards, inputs.rewards)": "calls Python",
    "return inputs.rewards if x > 0 else 0": "decides in Python",
    "return inputs.rewards * int(x)": "decides in Python",
}
OF_GROUPS = {
    "return inputs.mask * jnp.where(inputs.valid, inputs.scores, 0).reshape(4, 3).reshape(-1, 1)": "which fails",
    "return inputs.mask * jnp.mean(inputs.scores, 1).repeat(inputs.scores.shape[1])[:, None]": "not valid",
    "return inputs.mask * (inputs.scores / jnp.std(inputs.scores, 1)[:, None]).reshape(-1, 1)": "not finite",
    "return inputs.mask * (inputs.scores * jnp.mean(inputs.scores)).reshape(-1, 1)": "not valid",
}
OBJECTIVES = {
    "return -inputs.advantage": "no gradient",
    "return jnp.sum(inputs.logprob)": "shape []",
    "return -inputs.advantage * jnp.exp(inputs.logprob - inputs.old_logprob)": "reads old_logprob",
    "return -inputs.advantage * inputs.logprob / jnp.sum(inputs.mask, 1, keepdims=True)": "not finite",
    "return -inputs.advantage * jnp.mean(inputs.logprob, 1, keepdims=True)": "outside the mask",
    "m = inputs.mask; return -jnp.sum(m * inputs.advantage, 1, keepdims=True) * inputs.logprob": "other tokens",
    "m = inputs.mask; return -jnp.sum(m * inputs.advantage) * inputs.logprob": "other tokens",
    "return inputs.logprob, inputs.logprob, inputs.logprob": "(losses, clipped)",
}
FILTERS = {
    "return inputs.valid": "bool of shape [6, 3]",
    "return jnp.max(inputs.returns, axis=1)": "float32 of shape [6]",
    "return jnp.max(inputs.returns, axis=1) > 0.1": "not valid",
    "return jnp.mean(inputs.length) > 3": "bool of shape []",
}
OF_RATIOS = {
    "return -inputs.advantage * jnp.exp(2 * (inputs.logprob - inputs.old_logprob))": "log-ratio of 50",
    "return -inputs.advantage * jnp.sqrt(jnp.abs(inputs.logprob - inputs.old_logprob))": "log-ratio of 0",
}


@pytest.mark.parametrize(
    ("inputs", "needs", "body", "why"),
    [
        *(("AdvantageInputs", "", body, why) for body, why in ADVANTAGES.items()),
        *(("AdvantageInputs", '"groups",', body, why) for body, why in OF_GROUPS.items()),
        *(("ObjectiveInputs", "", body, why) for body, why in OBJECTIVES.items()),
        *(("ObjectiveInputs", '"ratio",', body, why) for body, why in OF_RATIOS.items()),
        *(("FilterInputs", "", body, why) for body, why in FILTERS.items()),
    ],
)
def test_what_a_function_does_wrong_is_one_sentence(inputs, needs, body, why, module):
    name = module(f"""
        @rule(needs=({needs}))
        def mine(inputs: {inputs}, *, x: float = 1.0):
            {body}
        """)
    section = inputs.removesuffix("Inputs").lower()
    error = refusal(with_own_rules, config_of(**{section: f"{name}:mine"}))
    assert (error.key, error.value) == (f"algo.{section}", f"{name}:mine")
    assert why in str(error)
    assert "\n" not in str(error)


OPTIMIZERS = {
    "return optax.sgd": "returns function",
    "return optax.scale_by_adam(x)": "against the gradient",
    "return optax.adamw(1.0, b1=y)": "'y'",
    "return optax.chain(optax.sgd(1.0), optax.stateless(lambda u, p: jax.tree.map(jnp.sqrt, u)))": "finite",
    "return optax.stateless(lambda u, p: jax.tree.map(lambda g: -g / jnp.abs(g).sum(), u))": "gradient is 0",
    "return optax.stateless(lambda u, p: jax.tree.map(lambda g: -jnp.sum(g), u))": "in shape and type",
    "return optax.stateless(lambda u, p: jax.tree.map(lambda g: -g if g.sum() > 0 else g, u))": "jnp.where",
    "return optax.stateless(lambda u, p: (jax.debug.print('x'), jax.tree.map(jnp.negative, u))[1])": "calls",
    "return optax.GradientTransformation(lambda p: 'text', optax.sgd(1.0).update)": "no arrays",
    "return optax.GradientTransformation(lambda p: jnp.int32(0), lambda u, s, p: (jax.tree.map(jnp.negative, u), 0.5))":
        "its types",
}  # fmt: skip


@pytest.mark.parametrize(("body", "why"), OPTIMIZERS.items())
def test_what_an_optimizer_does_wrong_is_one_sentence(body, why, module):
    name = module(f"import optax\n@rule()\ndef mine(*, x: float = 0.9):\n    {body}\n")
    error = refusal(with_own_rules, decode({"optim": f"{name}:mine"}))
    assert (error.key, error.value) == ("optim", f"{name}:mine")
    assert why in str(error)
    assert "\n" not in str(error)


def test_an_import_that_takes_a_while_is_said(module, monkeypatch, capsys):
    monkeypatch.setattr(own_sources, "PATIENCE", 0.01)
    name = module("import threading\nthreading.Event().wait(1.0)\n" + RULES)
    with_own_rules(config_of(advantage=f"{name}:centered"))
    assert name in capsys.readouterr().err


def test_an_optimizer_of_the_user_steps_with_its_numbers(module, tmp_path):
    name = module("""
        import optax

        @rule()
        def mine(*, x: float = 0.5, nesterov: bool = False):
            return optax.sgd(1.0, momentum=x, nesterov=nesterov)
        """)
    optim = {"kind": f"{name}:mine", "x": 0.25, "lr": 0.1, "groups": [{"match": "b", "lr_factor": 0.0}]}
    config = with_own_rules(decode({"optim": optim}))
    assert (config.optim.parameters, config.optim.lr) == ({"x": 0.25, "nesterov": False}, 0.1)
    save_resolved(config.replace(run_dir=str(tmp_path)), tmp_path / "config.yaml")
    assert load_resolved(tmp_path / "config.yaml").optim == config.optim
    tx, params = build_model.build_optimizer(config), {"a": jnp.float32(1.0), "b": jnp.float32(1.0)}
    state = tx.init(params)
    for expected in (-1.0, -1.25):
        updates, state = tx.update(params, state, params)
        assert (float(updates["a"]), float(updates["b"])) == (expected, 0.0)
    other = build_model.build_optimizer(with_own_rules(decode({"optim": optim | {"x": 0.5}})))
    assert other is not tx
    error = refusal(with_own_rules, config_of(advantage=f"{name}:mine"))
    assert (error.key, "an optimizer" in str(error)) == ("algo.advantage", True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise SystemExit(3)", "SystemExit"),
        ("import not_there_at_all", "not_there_at_all"),
        ("@rule(needs=('magic',))\ndef mine(inputs: AdvantageInputs): return 0", "magic"),
        ("@rule(unit='row')\ndef mine(inputs: AdvantageInputs): return 0", "unit"),
        ("@rule()\ndef mine(inputs): return 0", "annotation"),
        ("@rule()\ndef mine(inputs: AdvantageInputs, x: float = 1): return 0", "behind *"),
        ("@rule()\ndef mine(inputs: AdvantageInputs, *, x: list = 1): return 0", "annotated"),
        ("@rule()\ndef mine(inputs: AdvantageInputs, *, whiten: bool = True): return 0", "another name"),
    ],
)
def test_a_module_that_fails_is_one_sentence(text, why, module, capsys):
    name = module(f"print('hello')\n{text}")
    error = refusal(with_own_rules, config_of(advantage=f"{name}:mine"))
    assert (error.key, error.value) == ("algo.advantage", f"{name}:mine")
    assert why in str(error)
    assert capsys.readouterr().out == ""
