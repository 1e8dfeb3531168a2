"""The adapter for OpenStack's compute service: Nova runs unmodified, and this library allocates its devices.

Nova loads no driver from outside its own package, so the command ``devicetrack-nova-compute`` replaces
``nova-compute``: it wraps some of Nova's methods (:mod:`.tracker`, :mod:`.driver`, :mod:`.compute`) and runs Nova's own
``main``. Nova keeps CPU, memory, disks, network and its PCI tracker. Only the claim manager decides which mediated
device or namespace of persistent memory a guest gets, records it, and decides when to wipe and remove it.

Three rules hold for every wrapped method:

- Claims are made before Nova takes its ``compute_resources`` lock, and a context variable carries them into the locked
  part. Devices are given back after Nova has destroyed the guest. Nova's own ``destroy`` gives nothing back, since a
  hard reboot, a rebuild and a revert call it and go on. So a lost give costs capacity until the next audit, but never
  data.
- Without a manager a wrapped method refuses. It never falls back to Nova's own choice or wipe.
- Only hosts with Nova's libvirt driver have such devices. With another driver a wrapped method does what Nova does.
"""
