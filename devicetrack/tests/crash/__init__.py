"""What this project runs through its crash kit: ``python -m devicetrack.tests.crash``."""
