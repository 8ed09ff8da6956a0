"""The engine process: one device (or one rank of several), one loop. Started by name as `python -m trivium.engine`, never imported by clients."""
