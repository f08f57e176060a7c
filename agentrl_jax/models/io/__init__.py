"""Loading and saving of pretrained weights: Hugging Face folders, GGUF files and PEFT adapters, without PyTorch.

`load` has the main functions. Every function raises `errors.WeightsError` for a file that is damaged, does not fit the
model, or has a setting that is not supported.
"""
