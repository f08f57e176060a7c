"""Two processes that are connected agree, and one refusal reaches both."""

import json

from processes import GLOO, two_processes

AGREEMENT = """
import json, sys
from agentrl_jax.config import HostsConfig
from agentrl_jax.parallel import hosts
index = int(sys.argv[2])
hosts.start(HostsConfig(coordinator=sys.argv[1], count=2, index=index))
import jax, numpy as np
from agentrl_jax.errors import UserError
from agentrl_jax.parallel.mesh import make_mesh
from jax.sharding import NamedSharding, PartitionSpec
mesh = make_mesh()
def refuse():
    raise UserError(f"refused by {index}")
try:
    refused = hosts.from_writer(refuse)
except UserError as error:
    refused = str(error)
try:
    make_mesh(1)
except ValueError as error:
    few = str(error)
rows = jax.make_array_from_callback((4,), NamedSharding(mesh, PartitionSpec("data")), lambda at: np.arange(4)[at])
print(json.dumps([
    mesh.size, hosts.is_writer(), hosts.gather({"index": index, "text": "é" * 100 * index}), hosts.agree(index == 1),
    hosts.agree(False), hosts.from_writer(lambda: [index, None, 0.5]), refused, few,
    hosts.fetch({"rows": rows * 2, "own": np.int32(index)})["rows"].tolist(), hosts.same(np.ones(3)), hosts.same(index),
]))
hosts.stop()
"""


def test_two_processes_agree():
    codes, texts = two_processes(AGREEMENT)
    assert codes == [0, 0], texts
    first, second = (json.loads(GLOO.sub("", out)) for out, _ in texts)
    known = [{"index": 0, "text": ""}, {"index": 1, "text": "é" * 100}]
    few = "devices is 1, but the 2 hosts have 2; set devices to 2 or 0"
    told = [known, True, False, [0, None, 0.5], "refused by 0", few, [0, 2, 4, 6], True, False]
    assert first == [2, True, *told]
    assert second == [2, False, *told]
