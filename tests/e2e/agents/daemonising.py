"""Leaves a child in a session of its own behind, which holds stdout open for 30 s."""

import subprocess
import sys

child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(30)"], start_new_session=True)
if len(sys.argv) > 1:
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.write(str(child.pid))
print("I have a daemon")
