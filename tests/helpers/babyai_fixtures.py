"""Levels and play of the original BabyAI, as `golden/babyai/README.md` describes them.

Until commit 31cc5021 this file made the levels that the package ships out of them.
"""

import functools
import hashlib
import json

import jax
import numpy as np
from paths import GOLDEN

from envs_jax.babyai import codes, items, levels, macros
from envs_jax.babyai.env import BabyAI

FOLDER = GOLDEN / "babyai" / "fixtures"
SHAPE = items.SHAPE


@functools.cache
def read(name):
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


@functools.cache
def all_levels():
    return items.load(read("levels")["index"])


@functools.cache
def _ids():
    return {name: number for number, name in enumerate(macros.action_names())}


def action_id(text):
    text = text.lower().strip()
    if "check" in text:
        return macros.CHECK
    return macros.NO_ACTION if text == "" else _ids().get(text, macros.UNKNOWN)


@functools.cache
def action_texts():
    return json.loads(bytes(read("traces")["actions"]))


def digest(data):
    return np.frombuffer(hashlib.blake2b(data, digest_size=8).digest(), np.uint8)


def minigrid_image(view):
    """The bytes of MiniGrid's image, [column, row, 3], of a view."""
    return np.ascontiguousarray(codes.MINIGRID[view.astype(int)].transpose(1, 0, 2)).tobytes()


def panel_hashes():
    env = BabyAI(SHAPE)
    hashed = jax.vmap(lambda level: levels.hash_level(env.reset_to_level(level, env.default_params)[1]))
    return np.asarray(jax.jit(hashed)(items.load(items.panel())))
