"""The faces of an engine process: `EngineClient` for asyncio, `BlockingEngineClient` for scripts. Neither imports torch."""
