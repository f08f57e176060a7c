import jax
import made_run
import pytest
import yaml
from rich.console import Console

from agentrl_jax.config import decode
from agentrl_jax.evaluate.midway import MidwayCount
from agentrl_jax.runs.checkpoint import Checkpoints
from agentrl_jax.runs.live import LiveView
from agentrl_jax.runs.run_folder import RunFolder
from agentrl_jax.setup.parts import RunParts
from agentrl_jax.train.progress import RunProgress


@pytest.mark.parametrize("trained", ["whole", "adapter"])
def test_the_pretrained_model_is_not_kept_beside_the_restored_one(trained, tmp_path):
    model = {"pretrained": str(made_run.write_model(tmp_path / "model"))}
    model |= {"lora": {"rank": 2}} if trained == "adapter" else {}
    config = decode(yaml.safe_load(made_run.RUN) | {"model": model, "run_dir": str(tmp_path / "run")})
    for begins in (True, False):
        parts = RunParts(config, lambda: None)
        with (
            RunFolder(config) as folder,
            Checkpoints(folder.checkpoints, keep=1) as checkpoints,
            LiveView(1, title="", console=Console(quiet=True)) as view,
        ):
            progress = RunProgress(parts, folder, checkpoints, view, MidwayCount([], []))
            state = progress.restore()
            assert all(x.is_deleted() for x in jax.tree.leaves(parts.pretrained.params))
            jax.block_until_ready(state)
            if begins:
                progress.imitation_outcomes = {"sampled": [True]}
                progress.save(0, state)
                checkpoints.wait()
