"""Validates ATIF files with Harbor's models: `python validate_atif.py FILE...`; Harbor needs Python 3.12."""

import sys
from pathlib import Path

from harbor.models.trajectories import Trajectory

for name in sys.argv[1:]:
    found = Trajectory.model_validate_json(Path(name).read_text(encoding="utf-8"))
    print(found.schema_version, len(found.steps))
