"""Does it survive a crash at every step? A kit that finds the steps and kills a process at each of them."""
