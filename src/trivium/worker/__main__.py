"""`python -m trivium.worker`: see `worker.host`."""

from trivium.worker.host import main

main()
