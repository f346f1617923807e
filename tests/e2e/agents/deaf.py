"""Never reads its stdin."""

print("I did not listen")
