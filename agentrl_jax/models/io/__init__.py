"""Loading and saving of pretrained weights: Hugging Face folders, GGUF files and PEFT adapters, without PyTorch.

`load` has the main functions.
"""
