from known_tokenizers import compiled_grammar, large, small, smollm2_files  # noqa: F401
