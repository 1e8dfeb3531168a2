project = 'devicetrack'
copyright = 'devicetrack maintainers'
author = 'devicetrack maintainers'

extensions = [
    'cliff.sphinxext',
    'openstackdocstheme',
    'oslo_config.sphinxconfiggen',
    'oslo_config.sphinxext',
    'sphinx.ext.autodoc',
]

config_generator_config_file = '../../etc/devicetrack/devicetrack-config-generator.conf'
sample_config_basename = '_static/devicetrack'

# The theme asks git for the version and names the project's hosting; neither is needed here.
openstackdocs_auto_name = False
openstackdocs_auto_version = False
openstackdocs_repo_name = ''
openstackdocs_use_storyboard = False

autodoc_member_order = 'bysource'
autodoc_typehints = 'description'

templates_path = ['_templates']

html_theme = 'openstackdocs'
html_theme_options = {
    'analytics_tracking_code': '',
    'display_badge': False,
    'root_title': 'devicetrack',
}
html_context = {'display_badge': False}
html_last_updated_fmt = None
html_static_path = ['_static']
pygments_style = 'native'
