"""With which files and arguments systemd starts Nova's compute service."""

from __future__ import annotations

import pathlib

import fixtures

from devicetrack import exception
from devicetrack.nova import unit
from devicetrack.tests import base

# As openstack-pkg-tools writes them for Debian and Ubuntu: it runs $DAEMON, or prints what it would run.
SCRIPT = """#!/bin/sh
[ -z "$DAEMON" ] && DAEMON=/usr/bin/nova-compute
DAEMON_ARGS="--config-file=/etc/nova/nova.conf --config-file=/etc/nova/nova-compute.conf"
[ -x $DAEMON ] || exit 0
case "$1" in
systemd-start) exec $DAEMON $DAEMON_ARGS ;;
show-args) echo $DAEMON $DAEMON_ARGS --log-file=/var/log/nova/nova-compute.log ;;
esac
"""


class UnitTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.path = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.EnvironmentVariable('PATH', f'{self.path}:/usr/bin:/bin'))

    def write(self, name: str, text: str) -> str:
        path = self.path / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def have(self, unit_name: str, command: str, environment: str = '') -> None:
        self.write('systemctl', f"""#!/bin/sh
for last; do :; done
[ "$last" = {unit_name} ] || {{ echo LoadState=not-found; exit 0; }}
echo "Environment={environment}"
echo 'ExecStart={{ path=/x ; argv[]={command} ; ignore_errors=no ; start_time=[n/a] ; status=0/0 }}'
echo LoadState=loaded
echo User=nova
""")

    def found(self) -> unit.ServiceCommand:
        found = unit.find()
        assert found is not None
        return found

    def test_a_unit_that_starts_the_program(self) -> None:
        self.have('openstack-nova-compute', '/usr/bin/nova-compute')
        self.assertEqual(('openstack-nova-compute', 'nova', '/usr/bin/nova-compute', ()), self.found())
        self.assertEqual(([], []), self.found().files)
        self.have('nova-compute', '/usr/bin/python3 /opt/nova/bin/devicetrack-nova-compute --config-file /a --debug '
                                  '--config-file=/b --config-dir=/c')
        self.assertEqual('/opt/nova/bin/devicetrack-nova-compute', self.found().program)
        self.assertEqual((['/a', '/b'], ['/c']), self.found().files)

    def test_a_unit_that_runs_a_script_of_debian(self) -> None:
        program = self.write('devicetrack-nova-compute', '#!/bin/sh\nexit 1\n')
        self.have('nova-compute', f'{self.write("script", SCRIPT)} systemd-start', f'A=b DAEMON={program}')
        self.assertEqual((program, '--log-file=/var/log/nova/nova-compute.log'),
                         (self.found().program, (self.found().arguments or ())[-1]))
        self.assertEqual((['/etc/nova/nova.conf', '/etc/nova/nova-compute.conf'], []), self.found().files)

    def test_a_script_that_starts_nothing(self) -> None:
        self.have('nova-compute', f'{self.write("script", SCRIPT)} systemd-start', f'DAEMON={self.path}/none')
        error = self.assertRaises(exception.InvalidConfiguration, unit.find)
        self.assertIn(f'this starts nothing: {self.path}/none is missing or cannot be run', str(error))

    def test_arguments_in_variables(self) -> None:
        self.have('nova-compute', '/usr/bin/nova-compute $OPTIONS', "'OPTIONS=--config-file /a' B=c")
        self.assertEqual((['/a'], []), self.found().files)
        self.have('nova-compute', '/usr/bin/nova-compute $OPTIONS')         # they come from a file
        self.assertIsNone(self.found().arguments)

    def test_another_script(self) -> None:
        self.have('nova-compute', '/usr/local/bin/start-compute --config-file /a')
        self.assertEqual(('/usr/local/bin/start-compute', None), self.found()[2:])

    def test_a_host_without_such_a_unit_or_without_systemd(self) -> None:
        self.have('libvirtd', '/usr/sbin/libvirtd')
        self.assertIsNone(unit.find())
        self.write('systemctl', '#!/bin/sh\necho "not booted with systemd" >&2\nexit 1\n')
        self.assertIsNone(unit.find())
        self.useFixture(fixtures.EnvironmentVariable('PATH', str(self.path / 'none')))
        self.assertIsNone(unit.find())
