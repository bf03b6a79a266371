"""Files that others wrote: the one door through which they come in."""
