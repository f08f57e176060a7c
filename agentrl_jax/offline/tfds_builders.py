"""Builders of TFDS. This module imports `tensorflow_datasets`, which takes a second; import it where one is needed.

TensorFlow is not imported. Records are of `array_record`; rows keep their order.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from google.protobuf import json_format


class _Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """Writes given examples."""

    VERSION = tfds.core.Version("1.0.0")
    ABOUT, FEATURES = "", tfds.features.FeaturesDict({})

    def __init__(
        self, examples: Mapping[str, Iterable[Mapping[str, Any]]], metadata: Mapping[str, Any], **settings: Any
    ):
        """`examples` by the name of their split; `metadata` is stored beside them."""
        self._examples, self._known = examples, metadata
        super().__init__(file_format="array_record", **settings)

    def _info(self) -> tfds.core.DatasetInfo:
        metadata = tfds.core.MetadataDict(self._known)
        return tfds.core.DatasetInfo(
            builder=self, description=self.ABOUT, features=self.FEATURES, metadata=metadata, disable_shuffling=True
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {name: enumerate(examples) for name, examples in self._examples.items()}

    def _generate_examples(self) -> None:
        raise NotImplementedError


class AgentrlTrajectories(_Builder, skip_registration=True):  # type: ignore[call-arg]
    """Conversations, as `conversations.Conversation` has them."""

    ABOUT = "Conversations of agents with environments."
    FEATURES = tfds.features.FeaturesDict(
        {
            "messages": tfds.features.Sequence(
                {"role": tfds.features.Text(), "content": tfds.features.Text(), "loss": np.bool_}
            ),
            "task": tfds.features.Text(),
            "item": tfds.features.Text(),
            "reward": np.float32,  # NaN: unknown
            "success": np.int8,  # -1: unknown
        }
    )


class AgentrlRlds(_Builder, skip_registration=True):  # type: ignore[call-arg]
    """Episodes in the schema of RLDS (arXiv 2111.02767), as `rlds` makes them."""

    ABOUT = "Episodes of agents in environments, in the schema of RLDS."
    FEATURES = tfds.features.FeaturesDict(
        {
            "steps": tfds.features.Dataset(
                {
                    "observation": tfds.features.Text(),
                    "action": tfds.features.Text(),
                    "reward": np.float32,
                    "discount": np.float32,
                    "is_first": np.bool_,
                    "is_last": np.bool_,
                    "is_terminal": np.bool_,
                }
            ),
            "task": tfds.features.Text(),
            "item": tfds.features.Text(),
            "success": np.bool_,
            "iteration": np.int32,
        }
    )


def features_json() -> dict[str, Any]:
    """What TFDS writes into `features.json` of `AgentrlTrajectories`."""
    return json_format.MessageToDict(AgentrlTrajectories.FEATURES.to_proto())
