"""KServe v2 (the Open Inference Protocol) with Triton's extensions, over HTTP and gRPC."""
