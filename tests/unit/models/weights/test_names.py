"""Names and shapes of the tensors in files, written out."""

import pytest

from agentrl_jax.models.io.names import file_shapes, leaves
from agentrl_jax.models.shape import DecoderConfig

SHAPE = DecoderConfig(
    vocab_size=11, num_layers=2, embed_dim=8, num_heads=2, num_kv_heads=1, head_dim=6, mlp_width=10,
    tied_embeddings=False,
)  # fmt: skip
LAYER = {
    ("input_layernorm", "attn_norm"): (8,), ("post_attention_layernorm", "ffn_norm"): (8,),
    ("self_attn.q_proj", "attn_q"): (12, 8), ("self_attn.k_proj", "attn_k"): (6, 8),
    ("self_attn.v_proj", "attn_v"): (6, 8), ("self_attn.o_proj", "attn_output"): (8, 12),
    ("mlp.gate_proj", "ffn_gate"): (10, 8), ("mlp.up_proj", "ffn_up"): (10, 8), ("mlp.down_proj", "ffn_down"): (8, 10),
}  # fmt: skip
OUTER = {
    ("model.embed_tokens", "token_embd"): (11, 8), ("model.norm", "output_norm"): (8,), ("lm_head", "output"): (11, 8),
}  # fmt: skip


@pytest.mark.parametrize(("column", "kind", "layer"), [(0, "hf", "model.layers.{}."), (1, "gguf", "blk.{}.")])
def test_files_hold_matrices_by_output(column, kind, layer):
    expected = {f"{names[column]}.weight": shape for names, shape in OUTER.items()}
    for number in range(2):
        expected |= {f"{layer.format(number)}{names[column]}.weight": shape for names, shape in LAYER.items()}
    assert file_shapes(leaves(SHAPE, kind)) == expected
