"""Conversations and pairs to learn from, out of files and folders.

`read.read_data` and `read.read_pairs` read them, `conversations` says what they are. Training rows are made of them
elsewhere; nothing here knows a tokenizer, except `recorded`, which reads the rollouts of a run.
"""
