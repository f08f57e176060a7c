"""Writes `golden.npz`: logits of torch and transformers for the checkpoints of `families`.

    python tests/golden/models/parity/make_golden.py

Needs torch, transformers, NumPy and safetensors; the versions used are stored with the logits.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))
import families


def logits(family: str, folder: Path) -> np.ndarray:
    """f32[BATCH, LENGTH, V] of transformers' model, loaded from files."""
    families.write_folder(family, folder)
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    with torch.no_grad():
        return model(torch.tensor(families.tokens(family)).long()).logits.numpy()


def main() -> None:
    """Writes the file and prints how large the logits are."""
    found = {}
    for family in families.FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            found[family] = logits(family, Path(folder) / family)
        print(f"{family:14} logits within {np.abs(found[family]).max():.2f}")
    found["versions"] = np.array([f"torch {torch.__version__}", f"transformers {transformers.__version__}"])
    np.savez_compressed(Path(__file__).with_name("golden.npz"), **found)


if __name__ == "__main__":
    main()
