"""HTTP/2 (RFC 9113) as far as a gRPC server needs it: one connection class, no upgrade, no TLS, no push."""
