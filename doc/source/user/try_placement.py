"""A placement server to try the commands with, until Enter is pressed. What it was told goes with it."""

from devicetrack.testing import placement as placements

with placements.PlacementServer() as server:
    print('[placement]', 'auth_type = admin_token', f'endpoint = {server.url}', f'token = {placements.TOKEN}',
          sep='\n', flush=True)
    input()
