"""Prints as many mebibytes of plain text as its argument says (300)."""

import sys

piece = b"all work and no play " * 49932
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 300):
    sys.stdout.buffer.write(piece)
