"""A compute service of two hosts as a model, the shipped library beneath it, and a search through what may happen.

``world`` has the hosts, ``service`` the service and what it knows, ``operations`` what may happen, ``oracle`` what must
hold, ``finishing`` how everything is brought to an end, ``canonical`` which worlds are the same, ``search`` the search,
and ``mutants`` the faults that it has to find.
"""
