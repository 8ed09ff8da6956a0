"""What clients may change while the server runs, and HTTP and gRPC share."""

from __future__ import annotations

from trivium.config import GrpcConfig
from trivium.frontends.kserve.log_settings import LogSettings
from trivium.frontends.kserve.shared_memory import SharedMemoryRegions
from trivium.frontends.kserve.trace import TraceSettings
from trivium.frontends.kserve.trace_writer import TraceWriter


class KserveState:
    """One for each server. Belongs to the event loop."""

    def __init__(self, config: GrpcConfig | None = None) -> None:
        config = config or GrpcConfig()
        self.regions = SharedMemoryRegions(is_allowed=config.allow_client_shm)
        self.log = LogSettings()
        self.trace = TraceSettings(trace_file=config.trace_file)
        self.traces = TraceWriter(self.trace)
