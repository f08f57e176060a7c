"""Rotary angles, norms and products of a layer against the formulas."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_decoder import CONFIG

from agentrl_jax.models import matmul
from agentrl_jax.models.layers import rms_norm, rotary_angles, rotary_frequencies, rotate
from agentrl_jax.models.shape import Llama3Scaling

SHAPE = dataclasses.replace(CONFIG, head_dim=8, rope_theta=100.0)
SCALING = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=64)


def frequencies(scaled):
    """Long wavelengths are divided by the factor, short ones kept, and those between mixed."""
    found = []
    for i in range(4):
        frequency = 100.0 ** (-2 * i / 8)
        turns = 64 * frequency / (2 * math.pi)
        kept = min(max((turns - 1.0) / 3.0, 0.0), 1.0)
        found.append(kept * frequency + (1 - kept) * frequency / 8.0 if scaled else frequency)
    return found


def test_frequencies():
    np.testing.assert_allclose(rotary_frequencies(SHAPE), frequencies(False), rtol=1e-6)
    scaled = dataclasses.replace(SHAPE, rope_scaling=SCALING)
    np.testing.assert_allclose(rotary_frequencies(scaled), frequencies(True), rtol=1e-6)
    kept = np.divide(frequencies(True), frequencies(False))
    assert kept[0] == 1.0 > kept[1] > kept[-1] == 0.125


def test_pairs_are_rotated_by_their_position():
    x, position = np.random.default_rng(0).normal(size=(5, 2, 8)), np.array([0, 1, 2, 7, 30])
    cos, sin = rotary_angles(jnp.asarray(position), SHAPE)
    assert cos.shape == sin.shape == (5, 1, 4)
    found = rotate(jnp.asarray(x, jnp.float32), (cos, sin))
    for row, at in enumerate(position):
        for i, frequency in enumerate(frequencies(False)):
            angle = at * frequency
            a, b = x[row, :, i], x[row, :, i + 4]
            np.testing.assert_allclose(found[row, :, i], a * math.cos(angle) - b * math.sin(angle), atol=1e-4)
            np.testing.assert_allclose(found[row, :, i + 4], a * math.sin(angle) + b * math.cos(angle), atol=1e-4)


def test_the_norm_is_the_root_of_the_mean_square():
    x, scale = np.random.default_rng(1).normal(size=(3, 8)), np.linspace(0.5, 2.0, 8)
    expected = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 0.1) * scale
    np.testing.assert_allclose(rms_norm(jnp.asarray(x), jnp.asarray(scale), 0.1), expected, rtol=1e-5)


@pytest.mark.parametrize("rows", [3, 4])
def test_a_transposed_matrix_gives_the_same_product(rows):
    """With few rows, at most an eighth of the smaller side, and with many, which use different code."""
    x, matrix = (jax.random.normal(jax.random.key(seed), shape) for seed, shape in enumerate(((rows, 24), (24, 40))))
    np.testing.assert_allclose(x @ matmul.Transposed(matrix.T), x @ matrix, atol=1e-5)
