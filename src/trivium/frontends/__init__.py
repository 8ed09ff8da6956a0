"""Wire formats. Everything here sees the service, the types, the errors and the metrics, and nothing below them."""
