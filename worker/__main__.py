"""`python -P -m worker`: one worker process."""

from __future__ import annotations

import sys

from worker.app import main

sys.exit(main())
