"""`python -P -m worker`: one worker process."""

from __future__ import annotations

import sys

from evalfleet.importing import uncollected
from evalfleet.surroundings import settle

settle()

with uncollected():
    from worker.app import main

sys.exit(main())
