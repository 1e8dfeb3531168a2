"""A card of vGPUs came to another address at a boot, and its guests got other vGPUs: what placement counts then."""

from __future__ import annotations

import itertools

from devicetrack import exception
from devicetrack.placement import tree
from devicetrack.placement.healer import Healer
from devicetrack.placement.healer import Healing
from devicetrack.placement.healer import NOTHING
from devicetrack.testing import placement as placements
from devicetrack.tests import base
from devicetrack.tests.functional.placement import nodes


class MovedCardTestCase(base.TestCase):

    def test_an_allocation_stays_at_the_former_provider_until_its_instance_goes(self) -> None:
        placement = self.useFixture(placements.Placement())
        world = self.useFixture(nodes.FlatHost(placement, {'card at 3d': 2}))
        host, direct, client = world.host, placement.direct, Healer(placement.client, attempts=5)
        world.report(tree.ANNOUNCED)
        instance = world.spawn()
        client.heal(world.heal_node())
        self.assertEqual(tree.NESTED, world.report(tree.NESTED))
        before = direct.get_allocations(instance.uuid).resources
        [former] = before.keys() - {world.node}
        host.service.known = {instance.uuid: 'here'}
        host.machine.reboot()
        for record in host.records():
            host.machine.remove(record.key)
        del host.machine.parents['card at 3d']
        host.machine.add_parent('card at 3e', units=2)
        answers = itertools.cycle((exception.ParentGone('mdev', 'card at 3d', 'nvidia-35', 'nothing is there'), None))

        def create() -> None:
            if (error := next(answers)) is not None:
                raise error

        host.machine.before('create', create)
        host.restart()
        world.manager = host.manager
        host.manager.realize(None, instance, new_definition=True)
        config = host.manager.guest_config(instance)
        host.machine.start_guest(instance.uuid, config.devices, metadata=config.metadata)
        host.manager.started(None, instance)
        host.audit()
        [record] = host.records(instance)
        self.assertNotEqual(former, record.provider_uuid)
        self.assertEqual(tree.NESTED, world.report(tree.NESTED))
        # So one vGPU more looks free than there is. A heal moves only what is allocated at the node.
        self.assertEqual({'card at 3d': (2, 1), 'card at 3e': (2, 0)}, world.room())
        self.assertEqual(Healing(NOTHING), client.heal(world.heal_node()))
        self.assertEqual(before, direct.get_allocations(instance.uuid).resources)
        world.delete(instance)
        host.audit()
        world.report(tree.NESTED)
        self.assertEqual({'card at 3e': (2, 0)}, world.room())
