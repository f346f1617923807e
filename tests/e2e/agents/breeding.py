"""Leaves a child in its own process group behind, which holds stdout open and writes its pid to the file named."""

import subprocess
import sys

child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(30)"])
if len(sys.argv) > 1:
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.write(str(child.pid))
print("I have a child")
