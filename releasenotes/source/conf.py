project = 'devicetrack release notes'
copyright = 'devicetrack maintainers'
author = 'devicetrack maintainers'

extensions = ['openstackdocstheme', 'reno.sphinxext']

# The theme asks git for versions and for a bug tracker; the notes name their versions themselves.
openstackdocs_auto_name = False
openstackdocs_auto_version = False
openstackdocs_repo_name = ''
openstackdocs_use_storyboard = False

templates_path = ['../../doc/source/_templates']

html_theme = 'openstackdocs'
html_theme_options = {
    'analytics_tracking_code': '',
    'display_badge': False,
    'root_title': 'devicetrack',
}
html_context = {'display_badge': False}
html_last_updated_fmt = None
pygments_style = 'native'
