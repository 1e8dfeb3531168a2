"""The commands: parse, wire, print. They decide nothing."""
