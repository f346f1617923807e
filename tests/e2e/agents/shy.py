"""Closes its stdout early and ends well only when its parent would see it."""

import os
import sys
import time

sys.stdout.write("that is all")
sys.stdout.flush()
os.close(1)
time.sleep(0.3)
os._exit(0)
