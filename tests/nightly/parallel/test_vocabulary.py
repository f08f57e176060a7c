"""Scores of tokens on more meshes, of other shapes; and what no device holds."""

import dataclasses

import pytest
from spread_vocabulary import TIED, UNTIED, batch, check_scores, on_mesh

from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel import hlo


@pytest.mark.parametrize(
    ("name", "fsdp", "sequence", "tensor"),
    [
        ("tied", 4, 1, 1),
        ("untied", 2, 1, 2),
        ("untied", 4, 1, 1),
        ("untied", 2, 2, 1),
        ("odd", 4, 1, 1),
        ("odd", 2, 1, 2),
        ("adapters", 4, 1, 1),
        ("packed", 2, 2, 1),
    ],
)
def test_scores_and_gradients_are_those_of_one_device(name, fsdp, sequence, tensor, monkeypatch):
    check_scores(name, fsdp, sequence, tensor, monkeypatch)


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("shape", [TIED, UNTIED], ids=["tied", "untied"])
def test_no_device_has_the_whole_embedding_or_output_matrix(shape, tensor):
    """Collectives have at most a device's share of these largest matrices, or a block of another for `tensor`."""
    model = ActorCritic(decoder=dataclasses.replace(shape, vocab_size=4096, mlp_width=2048), critic="none")
    function, arguments = on_mesh(model, batch(packed=False), 4 // tensor, 1, tensor)
    text = function.lower(*arguments).compile().as_text()
    sizes = [found.size for found in hlo.operations(text, hlo.COLLECTIVES)]
    assert 0 < max(sizes) <= max(4096 / 4, 2048 / tensor) * shape.embed_dim * 4
