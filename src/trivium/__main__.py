"""`python -m trivium` is the `trivium` command."""

from __future__ import annotations

from trivium.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
