import copy

import pytest
import yaml
from refusing import refusal

from agentrl_jax.config.comparison import check_same, load_comparison

FILE = {
    "seeds": 3,
    "run": {"seed": 7, "algo": {"minibatches": 2, "kl": "fixed"}, "optim": {"weight_decay": 0.1}},
    "variants": {"one": {"algo": {"preset": "grpo"}}, "two": {"algo": {"kl": {"coef": 0.5}}, "optim": {"lr": 1e-3}}},
    "pairs": [["one", "two"]],
}


def load(tmp_path, **changes):
    """`changes` are dotted keys, with __ for a dot."""
    data = copy.deepcopy(FILE)
    for key, value in changes.items():
        *above, last = key.split("__")
        node = data
        for name in above:
            node = node.setdefault(name, {})
        node[last] = value
    path = tmp_path / "compare.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return load_comparison(path)


def test_variants_share_the_run_and_change_what_they_name(tmp_path):
    found = load(tmp_path)
    assert (found.seeds, found.devices, found.pairs) == (3, 1, (("one", "two"),))
    one, two = found.variants.values()
    assert found.shared is one
    assert [(x.seed, x.algo.minibatches, x.optim.weight_decay) for x in (one, two)] == [(7, 2, 0.1)] * 2
    assert [(x.algo.advantage.kind, x.algo.kl.kind) for x in (one, two)] == [("grpo", "fixed"), ("gae", "fixed")]
    assert [(x.algo.kl.coef, x.optim.lr) for x in (one, two)] == [(0.001, 3e-4), (0.5, 1e-3)]
    check_same("one", one, one)
    assert "optim.lr" in str(refusal(check_same, "two", two, two.replace(optim=two.optim.replace(lr=0.1))))


IMITATES = {"run__imitation": {"levels": 8, "steps": 25}}


@pytest.mark.parametrize(
    ("accepted", "refused", "named"),
    [
        ({"variants__one__algo__epochs": 1}, {"variants__one__algo__epochs": 2}, "algo.epochs"),
        ({"variants__one__algo__minibatches": 2}, {"variants__one__algo__minibatches": 1}, "algo.epochs"),
        ({"devices": 4}, {"run__devices": 4}, "run.devices"),
        ({"devices": 0}, {"run__mesh": {"fsdp": 2}, "run__devices": 1}, "mesh"),
        ({}, {"run__hosts": {"coordinator": "auto"}}, "run.hosts"),
        ({"run__train__on_collapse": "go_on"}, {"run__train__on_collapse": "stop"}, "on_collapse"),
        ({}, {"run__train__mutual_information_every": 5}, "mutual_information_every"),
        ({}, {"variants__two__optim__offload": True}, "optim.offload"),
        ({}, {"variants__two__algo__distillation": "self"}, "algo.distillation"),
        (IMITATES, {"run__imitation": {"levels": 8, "steps": 50, "hinted": 0.5}}, "imitation.hinted"),
        ({"run__seed": 2**32 - 3}, {"run__seed": 2**32 - 2}, "run.seed"),
        ({"run__train__keep": 2}, {"run__train__keep": 3}, "run.train.keep"),
        ({"run__train__checkpoint_every": 10}, {"run__train__checkpoint_every": 5}, "run.train.checkpoint_every"),
        ({}, {"run__run_dir": "x"}, "run_dir"),
        ({}, {"run__start": {"run": "x"}}, "run.start.run"),
        ({}, {"run__tasks": [{"env": "X", "groups": 8, "sampling": {"kind": "distinct"}}]}, "run.tasks.0.sampling"),
        ({}, {"run__train__keep_every": 10}, "keep_every"),
        ({"run__train__validate_every": 1}, {"run__train__validate_every": 0}, "validate_every"),
        ({"run__train__iterations": 1}, {"run__train__iterations": 0}, "iterations"),
        ({"variants__two__model": {"layers": 3}}, {"variants__two__train": {"iterations": 3}}, "variants.two.train"),
        ({"variants__two__model": {"layers": 3}}, {"variants__two__model": "big"}, "variants.two.model"),
        ({"variants__a-b_1": {}}, {"variants__a/b": {}}, "a/b"),
        ({"variants__" + "a" * 100: {}}, {"variants__" + "a" * 101: {}}, "1 to 100"),
        ({"pairs": []}, {"pairs": [["one", "three"]]}, "three"),
        ({}, {"variants": {}}, "variants"),
        ({}, {"variants__two__algo__epochs": 0}, "variants.two"),
        ({}, {"run__optim": 3}, "optim is 3"),
        (IMITATES, IMITATES | {"variants__two__optim__b1": 0.5}, "optim.b1"),
        ({"variants__two__optim__b1": 0.5}, IMITATES | {"variants__two__algo__packing": True}, "algo.packing"),
        ({}, {"run__imitation": {"levels": 8, "steps": 50, "dagger_rounds": 1, "dagger_levels": 8}}, "dagger_rounds"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, accepted, refused, named):
    load(tmp_path, **accepted)
    error = refusal(load, tmp_path, **refused)
    assert named in error.key or named in str(error)


GRID = {"optim.lr": [3e-4, 0.5], "algo.objective": ["ppo", {"kind": "cispo"}], "algo.objective.clip_high": [0.25]}


def test_a_grid_gives_every_variant_every_combination(tmp_path):
    found = load(tmp_path, grid=GRID, pairs=[]).variants
    assert [*found][:3] == [
        "one-lr=0.0003-objective=ppo-clip_high=0.25",
        "one-lr=0.0003-objective=cispo-clip_high=0.25",
        "one-lr=0.5-objective=ppo-clip_high=0.25",
    ]
    assert len(found) == 8
    cell = found["two-lr=0.5-objective=cispo-clip_high=0.25"]
    assert (cell.optim.lr, cell.algo.objective.kind, cell.algo.objective.clip_high) == (0.5, "cispo", 0.25)
    assert (cell.algo.kl.coef, cell.optim.weight_decay) == (0.5, 0.1)  # of the variant and the run
    alone = load(tmp_path, grid={"optim.kind": ["muon", "lion"]}, variants={}, pairs=[], run={"optim": "sgd"}).variants
    assert {name: config.optim.kind for name, config in alone.items()} == {"kind=muon": "muon", "kind=lion": "lion"}


TASKS = [{"env": "FrozenLake", "groups": 8}]


def test_cells_with_other_starts_or_levels_are_compared_apart(tmp_path):
    grid = {"tasks.0.options.size": [4, 5], "imitation.lr": [0.1], "optim.lr": [0.5, 0.25]}
    found = load(tmp_path, grid=grid, variants={}, pairs=[], run={"tasks": TASKS})
    chunks = [[*chunk.variants.values()] for chunk in found.chunks]
    rates = [[(cell.tasks[0].options["size"], cell.optim.lr) for cell in chunk] for chunk in chunks]
    assert rates == [[(4, 0.5), (4, 0.25)], [(5, 0.5), (5, 0.25)]]
    assert {(cell.tasks[0].groups, cell.imitation.lr) for chunk in chunks for cell in chunk} == {(8, 0.1)}
    assert [len(chunk.variants) for chunk in load(tmp_path).chunks] == [2]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"grid": {"train.iterations": [1, 2]}}, "grid"),
        ({"grid": {"optim": ["muon"]}}, "grid"),
        ({"grid": {"optim.lr": [0.1, 0.1]}}, "grid.optim.lr"),
        (
            {
                "grid": {
                    "optim.lr": [0.1],
                    "algo.kl.coef": [],
                }
            },
            "grid.algo.kl.coef",
        ),
        ({"grid": {"optim.lr": [i / 1000 for i in range(200)]}}, "grid"),
        ({"grid": {"optim.rate": [0.1]}}, "variants.one-rate=0.1: unknown key optim.rate"),
        ({"grid": {"tasks.1.levels": ["a"]}, "run": {"tasks": TASKS}}, "tasks.1.levels"),
        ({"variants": {}}, "variants"),
    ],
)
def test_a_grid_that_cannot_be_played_is_refused(tmp_path, changes, key):
    assert key in str(refusal(load, tmp_path, **changes, pairs=[]))
