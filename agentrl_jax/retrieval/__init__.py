"""Search over a corpus of passages; nothing here knows environments or training.

`corpus` has the passages and their reader, `retriever` the interface on the host, `registry` the retrievers by name.
What searches in the compiled program, and reads the files, is in `envs_jax.retrieval`.
"""
