from known_tokenizers import any_tokenizer, compiled_grammar, large, small, smollm2, smollm2_files  # noqa: F401
