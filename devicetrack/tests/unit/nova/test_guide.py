"""The pages of the operator's guide, as ``make debian-test`` reads them."""

from __future__ import annotations

import testtools

from devicetrack.tests.debian import guide


class GuideTestCase(testtools.TestCase):

    def test_blocks_are_those_of_one_section(self) -> None:
        [withheld] = guide.blocks('operate', 'Back to Nova alone')
        self.assertEqual(
            'sudo -u nova devicetrack-manage --config-file /etc/nova/nova.conf device list --withheld\n', withheld)

    def test_a_section_that_is_not_there(self) -> None:
        self.assertRaises(LookupError, guide.blocks, 'install', 'Gentoo')

    def test_the_way_of_debian_has_two_blocks_for_the_network_then_check_drop_in_and_start(self) -> None:
        _environment, _rights, check, drop_in, show, start = guide.blocks('install', 'Debian and Ubuntu')
        self.assertIn('devicetrack-nova-adopt --check', check)
        self.assertIn('show-args', show)
        self.assertIn('systemctl restart nova-compute', start)
        self.assertEqual([True, False], [guide.is_file(drop_in), guide.is_file(start)])

    def test_the_packages_of_debian_have_a_block_for_the_network_then_check_drop_in_and_way_back(self) -> None:
        install, check, link, remove = guide.blocks('install', 'Packages for Debian 13')
        self.assertIn('apt-get install', install)
        self.assertIn('devicetrack-nova-adopt --check', check)
        self.assertIn('ln --symbolic /usr/share/devicetrack/nova-compute.conf', link)
        self.assertIn('apt-get remove', remove)

    def test_every_drop_in_clears_what_it_sets_anew_or_names_the_program_alone(self) -> None:
        drop_ins = [guide.file_of(block) for section in ('Debian and Ubuntu', 'Units that start the program')
                    for block in guide.blocks('install', section) if guide.is_file(block)]
        self.assertEqual([
            ('/etc/systemd/system/nova-compute.service.d/devicetrack.conf',
             '[Service]\nEnvironment=DAEMON=/opt/nova/bin/devicetrack-nova-compute\nTimeoutStopSec=190\n'),
            ('/etc/systemd/system/openstack-nova-compute.service.d/devicetrack.conf',
             '[Service]\nExecStart=\nExecStart=/opt/nova/bin/devicetrack-nova-compute\nTimeoutStopSec=190\n')],
            drop_ins)

    def test_adoption_is_a_check_a_plan_and_its_record(self) -> None:
        check, plan, apply = guide.blocks('adopt', 'On one host')
        self.assertEqual(['--check' in check, '--check' in plan or '--apply' in plan, '--apply' in apply],
                         [True, False, True])
