"""The operations of this project under its crash kit: ``python -m devicetrack.tests.crash``."""
