"""When tensor requests run together: queues, policies, dynamic and sequence batching, rate limits. Decisions on numbers and a clock; no I/O."""
