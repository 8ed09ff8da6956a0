"""Messages of Triton's model configuration (`config.pbtxt`); their types are in the stub beside this file."""

from __future__ import annotations

from trivium.protocol.descriptors import definitions

globals().update(definitions("model_config.proto"))
