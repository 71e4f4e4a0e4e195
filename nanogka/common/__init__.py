"""Parts that every package uses: command lines, errors, files, formatting, signals, devices and ranks."""
