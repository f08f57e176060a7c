"""Search over passages in the compiled program, and the passages themselves.

`corpus` reads passages, `characters` reads the bytes of a query, `compiled_bm25` searches a corpus that is known on the
host, and `traced_bm25` one that is made in the program. `compiled_static` compares embeddings instead of words.
"""
