"""The adapter for OpenStack's compute service: Nova runs unmodified, and this library allocates its devices.

The command ``devicetrack-nova-compute`` replaces ``nova-compute``: it runs Nova's own ``main``, and gives the service a
subclass of Nova's compute manager (:mod:`.compute`), which has subclasses of Nova's resource tracker (:mod:`.tracker`)
and of its libvirt driver (:mod:`.driver`). Nova's own classes stay as they are. Nova keeps CPU, memory, disks, network
and its PCI tracker. Only the claim manager decides which mediated device or namespace of persistent memory a guest
gets, records it, and decides when to wipe and remove it.

Three rules hold for every overridden method:

- Claims are made before Nova takes its ``compute_resources`` lock, and the allocations that Nova passes on carry them
  into the locked part. Devices are given back after Nova has destroyed the guest. Nova's own ``destroy`` gives nothing
  back, since a hard reboot, a rebuild and a revert call it and go on. So a lost give costs capacity until the next
  audit, but never data.
- Without a manager an overridden method refuses. It never falls back to Nova's own choice or wipe.
- Only hosts with Nova's libvirt driver have such devices. With another driver the service has Nova's own manager.
"""
