"""What crosses between processes."""
