"""`python -m trivium.engine`: see `engine.host`."""

from trivium.engine.host import main

main()
