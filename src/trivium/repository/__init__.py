"""What is loaded, and who is using it."""
