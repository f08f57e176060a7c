from known_tokenizers import compiled_grammar, large, smollm2_files  # noqa: F401
