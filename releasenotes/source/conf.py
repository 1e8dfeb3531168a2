import logging

project = 'devicetrack release notes'
copyright = 'devicetrack maintainers'
author = 'devicetrack maintainers'

extensions = ['reno.sphinxext']
logging.getLogger('reno').setLevel(logging.WARNING)     # it tells of each note

html_theme = 'furo'
html_title = 'devicetrack release notes'
