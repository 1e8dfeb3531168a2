"""Pictures of hosts for people: a report, drawn as a page of HTML or with the characters of a terminal."""
