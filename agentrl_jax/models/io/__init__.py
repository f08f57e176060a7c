"""Pretrained weights in and out: Hugging Face folders, GGUF files and PEFT adapters, without PyTorch.

`load` is the front door.
"""
