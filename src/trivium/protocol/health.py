"""Messages of gRPC's health service; their types are in the stub beside this file."""

from __future__ import annotations

from trivium.protocol.descriptors import definitions

globals().update(definitions("health.proto"))
