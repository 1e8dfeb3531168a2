import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / '_ext'))

from sphinx.util import nodes

project = 'devicetrack'
copyright = 'devicetrack maintainers'
author = 'devicetrack maintainers'

extensions = [
    'cliff.sphinxext',
    'oslo_config.sphinxconfiggen',
    'oslo_config.sphinxext',
    'sequences',
    'sphinx.ext.autodoc',
    'sphinx.ext.graphviz',
]

config_generator_config_file = '../../etc/devicetrack/devicetrack-config-generator.conf'
sample_config_basename = '_static/devicetrack'

graphviz_output_format = 'svg'

autodoc_member_order = 'bysource'
# The column beside the page cuts long names: the class above them says whose they are.
toc_object_entries_show_parents = 'hide'
autodoc_typehints = 'description'

# A reference that leads nowhere is an error. The exceptions are names of Python and of other projects: their
# inventories are on the network, and the build needs no network.
nitpicky = True
nitpick_ignore_regex = [
    (r'py:.*', r'(collections|concurrent|contextlib|http|os|pathlib|threading|types)\..*'),
    (r'py:.*', r'(fixtures|keystoneauth1|libvirt|lxml|oslo_config|oslo_versionedobjects|sqlalchemy|testtools)\..*'),
    # The same by the short names of annotations, and a method in a docstring that oslo.versionedobjects hands down.
    (r'py:class', r'(cfg|ks_adapter)\..*'),
    (r'py:meth', r'obj_to_primitive'),
    # The row of a host in the store: no call of a service has it, and the host of the fixtures has its name.
    (r'py:class', r'(devicetrack\.store\.api|store_api)\.Host'),
    # What the mirror of a fleet takes from a report; the contributor's pages explain it.
    (r'py:class', r'devicetrack\.engine\.snapshot\.Snapshot'),
]

# Most literal blocks are output or shell commands. Python says so: code-block:: python.
highlight_language = 'none'

html_theme = 'furo'
html_title = 'devicetrack'
html_static_path = ['_static']
html_css_files = ['devicetrack.css']


# The names under which the code imports modules.
SHORT_MODULES = {'provider_resolvers': 'providers', 'store_api': 'store.api'}


def resolve_short_name(app, env, node, contnode):
    """Resolve a class or a function of ours that a docstring or an annotation calls by the end of its name."""
    if node.get('refdomain') != 'py':
        return None
    domain = env.get_domain('py')
    module, _, name = node['reftarget'].rpartition('.')
    module = SHORT_MODULES.get(module, module)
    found = [(full, entry) for full, entry in domain.objects.items()
             if f'.{full}'.endswith(f'.{module}.{name}' if module else f'.{name}') and not entry.aliased]
    if len(found) != 1:
        return None
    [(full, entry)] = found
    return nodes.make_refnode(app.builder, node['refdoc'], entry.docname, entry.node_id, contnode, full)


def draw_pictures(app):
    """Run the demo's host and a fleet, and let them draw the pictures of themselves that pages show."""
    source = pathlib.Path(app.srcdir)
    for program in (source.parents[1] / 'examples' / 'demo' / 'picture.py', source.parent / 'fleet_picture.py'):
        subprocess.run([sys.executable, '-W', 'ignore', str(program), str(source / '_static')], check=True)


def setup(app):
    app.connect('builder-inited', draw_pictures)
    app.connect('missing-reference', resolve_short_name)
