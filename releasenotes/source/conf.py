project = 'devicetrack release notes'
copyright = 'devicetrack maintainers'
author = 'devicetrack maintainers'

extensions = ['openstackdocstheme', 'reno.sphinxext']

# The theme asks git for versions and for a bug tracker; the notes name their versions themselves.
openstackdocs_auto_name = False
openstackdocs_auto_version = False
openstackdocs_repo_name = ''
openstackdocs_use_storyboard = False

html_theme = 'openstackdocs'
pygments_style = 'native'
