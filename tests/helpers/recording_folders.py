"""Recorded evaluations, and comparisons of their files."""

import numpy as np
from evaluating import result_of

from agentrl_jax.runs.rollout_records import read_record, record_path, recorded_iterations
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.viewer.scenes import run_scenes

LEVELS, SAMPLES = 8, 2
WORDS = ("--env", "FrozenLake", "--episodes", str(LEVELS), "--samples", str(SAMPLES))


def records(folder):
    return [read_record(record_path(folder, number)) for number in recorded_iterations(folder)]


def assert_boards(folder, record):
    drawn = run_scenes(folder, read_config(folder), record)
    assert [len(scenes) for scenes in drawn] == (1 + (record.actions >= 0).sum(axis=(1, 2))).tolist()
    return drawn


def recorded(run, folder, *words):
    result = result_of("eval", run, *words, "--record", folder)
    return result, {file.header.label: file for file in records(folder)}


def assert_without_numbers(record):
    assert np.isnan([record.logprob, record.learner_logprob, record.entropy]).all()
    assert not record.trained.any()
    assert not record.advantage.any()
