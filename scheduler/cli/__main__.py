from evalfleet.start import command

command()
