"""Messages of KServe v2 over gRPC, Triton's extensions included; their types are in the stub beside this file."""

from __future__ import annotations

from trivium.protocol.descriptors import definitions

globals().update(definitions("grpc_service.proto"))
