"""Pictures of hosts for people: what a report says, drawn as a page of HTML or in the characters of a terminal."""
