"""The `trivium` command: answers go to standard output, progress and logs to standard error."""
