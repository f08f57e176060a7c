from host_stage import Stage
from same_bits import assert_same

from agentrl_jax.parallel.mesh import make_mesh


def test_devices_do_not_matter():
    stage = Stage()
    played = stage.run(stage.program(make_mesh(1)))[0]
    for devices in (2, 8):
        trajectory, calls = stage.run(stage.program(make_mesh(devices)))
        assert calls["reset"] == devices
        assert calls["step"] == played.num_turns.reshape(devices, -1).max(axis=1).sum()
        assert_same(trajectory, played)
