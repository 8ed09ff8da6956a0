"""Text Generation Inference's API: routes, fields, checks, error texts and streams as its clients know them."""
